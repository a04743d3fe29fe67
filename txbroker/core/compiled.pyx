# cython: language_level=3, auto_pickle=False
# distutils: language = c++
"""
The core, compiled: `txbroker.core.reference` class by class, with the same results to the byte.

The reference says what a class or method is for. The comments here say how the work is done where
that differs. All work that needs no Python is in native/*.hpp. Python is entered once for a run,
never for a message. While a run is worked on, no object is made, and no code runs that is not here.
So objects that are looked at then need no reference of their own.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.math cimport INFINITY, ceil
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove, memset
from libcpp cimport bool as cbool
from libcpp.algorithm cimport partial_sort, stable_sort
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.utility cimport pair
from libcpp.vector cimport vector
from posix.time cimport (
    CLOCK_MONOTONIC,
    CLOCK_THREAD_CPUTIME_ID,
    clock_gettime,
    nanosleep,
    timespec,
)

import os

from txbroker.core.reference.columns import CACHE as _CACHE
from txbroker.core.reference.columns import FULL as _FULL
from txbroker.core.reference.columns import LAST as _LAST
from txbroker.core.reference.columns import Filled as _Filled
from txbroker.core.reference.columns import Texts as _Texts
from txbroker.core.reference.property_columns import FilledProperties as _FilledProperties
from txbroker.core.reference.router import HURRIED_BYTES as _HURRIED_BYTES
from txbroker.core.reference.router import LEAST as _LEAST
from txbroker.core.reference.router import MOST_OUTPUTS as _MOST_OUTPUTS
from txbroker.core.reference.router import OUTPUT_BYTES as _OUTPUT_BYTES
from txbroker.core.reference.router import OUTPUT_LIMIT as _OUTPUT_LIMIT
from txbroker.core.reference.flows import Flow
from txbroker.core.reference.link import LONGEST_KNOWN as _LONGEST_KNOWN
from txbroker.core.reference.link import MOST_KNOWN as _MOST_KNOWN
from txbroker.core.reference.packet_writer import MANY_DROPPED as _MANY_DROPPED
from txbroker.core.reference.packet_writer import MOST as _MOST
from txbroker.core.reference.packets import limit_levels as _limit_levels
from txbroker.core.reference.records import WholeRecord as _WholeRecord
from txbroker.core.reference.packets import Entry as EntryTuple
from txbroker.core.reference.sockets import FED as _FED
from txbroker.core.reference.stored import malformed as _malformed
from txbroker.mqtt.wire.framing import too_large as _too_large
from txbroker.mqtt.wire.message import OVERHEAD as _OVERHEAD
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.return_codes import ProtocolViolation
from txbroker.model.publish_run import MOST as _MOST_IN_RUN

include "native/native.pxi"

cdef size_t OVERHEAD = _OVERHEAD
cdef size_t MOST = _MOST
cdef uint64_t MANY_DROPPED = _MANY_DROPPED
cdef size_t HURRIED_BYTES = _HURRIED_BYTES
cdef size_t LEAST = _LEAST
cdef Py_ssize_t MOST_OUTPUTS = _MOST_OUTPUTS
cdef size_t OUTPUT_BYTES = _OUTPUT_BYTES
cdef size_t OUTPUT_LIMIT = _OUTPUT_LIMIT
cdef size_t MOST_IN_RUN = _MOST_IN_RUN
cdef int FED = _FED

set_seeds(<const Byte*>PyBytes_AS_STRING(os.urandom(24)))
keep_memory()

include "native/run.pxi"
include "native/packet_writer.pxi"
include "native/output_group.pxi"
include "native/packet_reader.pxi"
include "native/tree.pxi"
include "native/router.pxi"
include "native/accept.pxi"
include "native/sockets.pxi"
include "native/columns.pxi"
include "native/records.pxi"
