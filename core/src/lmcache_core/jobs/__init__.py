"""What core and adapters share: jobs and their completions, message queues between threads, rate-limited fault logs."""
