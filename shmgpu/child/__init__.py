"""The caller's side of a call; never runs a user's function, never imports helper/."""
