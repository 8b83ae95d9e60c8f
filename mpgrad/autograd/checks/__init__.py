"""The parts of ``gradcheck``: Jacobians and their comparison."""
