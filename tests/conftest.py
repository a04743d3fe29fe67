"""What holds for all tests."""

import signal

# A shell that runs the tests in the background has them ignore SIGINT, and their children inherit
# that: nodes that are told to end by it would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
