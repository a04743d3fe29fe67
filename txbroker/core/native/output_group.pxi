# Answers that several clients get together.

cdef enum:
    TOGETHER = 8


@cython.final
cdef class OutputGroup:
    """As in the reference."""

    cdef list members

    def __cinit__(self):
        self.members = []

    cdef int add(self, PacketWriter packet_writer) except -1:
        """Whoever fills the group has all of it written; what is left waits for the end of the turn."""
        self.members.append(packet_writer)
        if len(self.members) < TOGETHER:
            return 0
        members, self.members = self.members, []
        for packet_writer in members:
            if packet_writer.descriptor >= 0:
                packet_writer.write(packet_writer.descriptor)
        return 0
