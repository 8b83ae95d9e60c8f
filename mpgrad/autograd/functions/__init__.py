"""Behind ``Function``: its ctx, its Node, and what its forward returned."""
