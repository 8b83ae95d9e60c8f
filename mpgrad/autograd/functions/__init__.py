"""The parts of ``Function``: its ctx, its Node, and the outputs of its forward."""
