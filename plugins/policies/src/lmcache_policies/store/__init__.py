"""Which objects go to which adapters."""
