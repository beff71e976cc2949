"""What is measured, one file a workload; never prints, never draws."""
