"""What a recorded graph is made of: operators, Nodes, hooks, modes. It knows no Tensor."""
