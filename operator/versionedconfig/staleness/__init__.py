"""What each pod is served of a name that was reused. Pure, apart from the controller."""
