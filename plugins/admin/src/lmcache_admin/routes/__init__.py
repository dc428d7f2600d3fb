"""What the admin API answers: one module for each resource, which makes its handlers around what they need of the server.

How a route is made:

* Its **models** are in `lmcache_http.admin_api`, in a module for several resources: a
  `RequestBody`, a `QueryParameters` (`PageQuery` for a list in pages) and an `Answer`, with a limit and a description for
  each field that callers fill, and an example: `model_config = ConfigDict(json_schema_extra={"examples": [{...}]})`.
  They need no web framework, because the commands use them, too.
* What it **asks** is a protocol in `lmcache_core.contracts`, such as `AdapterControl`, so that it can be tried without a
  server.  It may take locks: it is called with `await sync_to_thread(...)` from an `async` handler (litestar's own
  `sync_to_thread=True` answers with a coroutine where one path has several methods).
* Its **handler** is given an `Operation`, which is all that the description of the API and the checks in front of it know:

      @get("/things/{name:str}", operation=Operation("One thing.", Thing, path={"name": "Its name."},
                                                     refusals={404: "there is no such thing"}, tag="things"))
      async def get_thing(request: Request[Any, Any, Any]) -> dict[str, Any]:
          return (await sync_to_thread(things.get, path_part(request))).model_dump()

* Values are read with `read_body`, `read_query` and `path_part`, which refuse what is unknown or malformed with 400 or 422.
  Whatever else the caller can fix is a `ProblemError`: its detail names the thing, the limit and the remedy, and its status
  is one of the operation's `refusals`.  What is begun and goes on is answered with 202 and a resource to ask again.
* Its paths are listed in `lmcache_http.admin_api.paths`, with which plugins' routes are compared, and it is added to
  `lmcache_admin.api`.  A body may have `BODY_BYTES_MAX`, unless the handler says `request_max_body_size=...`.

GET changes nothing: a token with the scope `read` may do all of it, and nothing else.
"""
