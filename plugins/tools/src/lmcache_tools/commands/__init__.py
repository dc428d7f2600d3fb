"""What follows `lmcache` on a command line: one module for each command, imported when it is asked for.

A module has two functions and the command that they make:

    def parsers() -> list[CommandParser]: ...                 # every command line that it takes, for completion and docs
    def run(arguments: Sequence[str], context: CommandContext) -> ExitCode: ...
    COMMAND: Final = Command(run, parsers)

A command that asks a running server has the flags of `admin_client.add_admin_flags` (`--url`, `--http-token-file`) and
shows its answer with `output.output_of`; one that asks no server takes `--format`, `--json`, `--output` and `--quiet`
alone, by `command_output.add_output_flags`.  What people see is a `page`: lines, tables and bars.  What takes longer than
a second says so, in `waiting.waiting`.  A failure is an LMCacheError; `exit_code` says which code it ends with.
"""
