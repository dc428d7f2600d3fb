"""Runtime plugins: programs that run beside the server for as long as it does."""
