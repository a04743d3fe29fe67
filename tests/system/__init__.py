"""The commands and nodes as users have them: processes of their own, real sockets."""
