"""What follows `lmcache` on a command line: one module per command, imported when it is asked for.

A module has two functions:

    def parsers() -> list[CommandParser]: ...                 # every command line that it takes, for completion and docs
    def run(arguments: Sequence[str]) -> ExitCode: ...

A command shows its answer with `command_output.CommandOutput`, which brings `--format`, `--json`, `--output` and `--quiet`.
`lmcache plugins list` is `plugins_list`.  A failure is an LMCacheError; `exit_code` says which code it ends with.  Commands
that ask a running server's admin API come with lmcache-tools.
"""
