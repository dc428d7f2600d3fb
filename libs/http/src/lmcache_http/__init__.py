"""What every HTTP server of the project has in front of its routes: tokens, limits, checks against browsers that are used
against their user, problem answers, and the description of the API; and the client of the commands.

    server = HttpServer("127.0.0.1", 8080, tokens, lambda: http_app(routes, tokens), name="admin")
    server.start()
"""

__version__ = "0.1.0"
