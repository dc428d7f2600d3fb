"""What the admin API answers: one module for each resource, which makes its handlers around the port they need."""
