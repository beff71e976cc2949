"""What a server says of itself to monitors; never changes what it measures."""
