"""
The fault harness: real trees of nodes under seeded faults, checked clients, a checked history.

    python -m tests.faults --seed 7 --minutes 5     random schedules; prints the seed on failure
    make faults MINUTES=30                          the same, long
    python -m tests.faults.mutants                  planted bugs, each of which must be found

| module | job |
|---|---|
| `events` | what can be seen from outside, as values; a history is a list of them |
| `history`, `deliveries` | which promises a history breaks (pure) |
| `wills` | when wills may come, and must (pure) |
| `losses` | what may be lost with a node that is gone for good (pure) |
| `trees`, `cast`, `schedule` | what a seed draws: tree, clients, what happens when (pure) |
| `clients`, `publisher`, `subscriber` | clients that keep to MQTT over every reconnect |
| `visitors` | clients that come for a moment in the calm |
| `world` | the nodes as processes, and what a fault does to them |
| `estates` | who has what of others, and who is gone for good (pure) |
| `faulty` | one node as a process |
| `operators`, `damage` | what an operator does to a node, and how files get damaged |
| `networks` | two kinds of network, with one interface |
| `switch` | the one for root: a namespace a node, and a switch that every packet passes |
| `relay` | the other: every connection between nodes passes a relay |
| `disks`, `disk.c` | slow disks, full disks, and power cuts that lose what was not synced |
| `connections` | what a node's process has open, for a run that failed |
| `rounds` | one tree from start to end: rounds of faults, each followed by a calm |

Everything is black-box: processes started with the documented command line, MQTT sockets, the
commands, log lines, files under `data`. Nothing of txbroker is imported.
"""
