"""The session's side of a call; never sends one, never imports child/."""
