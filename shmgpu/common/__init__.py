"""What any role may use: settings, logs, seeds, devices; never a role itself."""
