"""What core itself offers, through the same hooks as everybody else."""
