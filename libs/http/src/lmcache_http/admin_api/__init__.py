"""What callers of the admin API send and are answered: for the server, and for the commands that ask it."""
