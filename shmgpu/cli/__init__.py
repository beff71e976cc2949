"""The commands; never does itself what a wing does."""
