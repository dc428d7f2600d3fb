"""What follows `lmcache` on a command line: one module per command, imported when it is asked for.

A module has two functions:

    def parsers() -> list[Parser]: ...                        # every command line that it takes, for completion and docs
    def run(arguments: Sequence[str]) -> ExitCode: ...

A command that asks a running server has the flags of `admin_client.add_admin_flags` (`--url`, `--http-token-file`) and
shows its answer with `command_output.CommandOutput`, which brings `--format`, `--json`, `--output` and `--quiet`; one that
asks no server takes those alone, by `command_output.add_output_flags`.  What people see is a `page`: lines, tables and
bars.  What takes longer than a second says so, in `waiting.waiting`.  Commands of commands (`lmcache quota set`) are a
`command_group.CommandGroup`.  A failure is an LMCacheError; `exit_code` says which code it ends with.

    def run(arguments: Sequence[str]) -> ExitCode:
        given = parsers()[0].parse_all(arguments)
        answer = AdminClient.of(given).ask("GET", "/things")
        CommandOutput.of(given).show(answer, lambda: [Table(("NAME", "BYTES"), rows(answer))])
        return ExitCode.STOPPED
"""
