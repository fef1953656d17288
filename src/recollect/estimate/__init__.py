"""What the window says: values, advantages, the gradient and the Fisher matrix."""
