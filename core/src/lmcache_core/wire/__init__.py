"""What engines say: operations, their encoding, and the two places where stock clients send pickle."""
