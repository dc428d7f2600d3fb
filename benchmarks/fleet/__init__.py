"""The fleet's directory beside other designs, on the same keys."""
