"""Events without ratings (implicit feedback): which items a user will choose next."""
