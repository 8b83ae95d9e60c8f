"""Behind ``gradcheck``: Jacobians and how they are compared."""
