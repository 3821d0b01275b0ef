"""The one exception for a user's mistake."""


class UserError(Exception):
    """One sentence that names the cause and the fix; the command line prints it and exits with code 2."""
