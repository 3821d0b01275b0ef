"""The suite: frozen protocols that can be cited, submissions of runs that follow them, and the
leaderboard.
"""
