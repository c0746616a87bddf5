"""What people ask for in the terminal: questions about a cluster, answered by live reads with their own rights, and going away.

Each command has its own file. They share no state with a running operator.
"""
