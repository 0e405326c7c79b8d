"""The one exception that stands for a mistake of the user's, not of the program's."""


class UserError(Exception):
    """A mistake the user can mend.

    The message says what was given, what was expected, where, and what to do. The command line prints it
    without a traceback and exits with 2.
    """
