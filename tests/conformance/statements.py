"""
All normative statements of MQTT 3.1.1 (OASIS Standard, 29 October 2014, appendix B), in own words.

This list is the authority on which identifiers exist; the table in docs/conformance.md is made
from it and from the `@statement(...)` marks of the tests (see table.py). `who` is the side that has
to do something that a test can see at a server:

    server     binds the server
    both       binds both, or binds the client so that the server has to refuse a breach
    client     binds the client only; a server shows nothing of it
    websocket  chapter 6; no WebSocket listener is offered
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

statement = pytest.mark.statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """
    One normative statement. `remark` says why no test can show it, where that is so.
    """

    id: str
    who: str
    text: str
    remark: str = ""


NO_WEBSOCKET = "not applicable: WebSocket listener not offered yet"

_TEXT = """
1.5.3-1 both: ill-formed UTF-8 (surrogates included) in a string closes the connection
1.5.3-2 both: U+0000 in a string closes the connection
1.5.3-3 both: EF BB BF is the character U+FEFF anywhere, never stripped
2.2.2-1 both: reserved flag bits carry the values of table 2.2
2.2.2-2 both: invalid flags close the connection
2.3.1-1 both: SUBSCRIBE, UNSUBSCRIBE, PUBLISH at QoS 1 and 2 carry a non-zero packet identifier
2.3.1-2 client: a new packet gets an identifier that is not in use
2.3.1-3 client: a packet sent again keeps its identifier, free again after its acknowledgement
2.3.1-4 server: the same for the server's own PUBLISH at QoS 1 and 2
2.3.1-5 both: no packet identifier in a PUBLISH at QoS 0
2.3.1-6 both: PUBACK, PUBREC, PUBREL carry the identifier of the PUBLISH
2.3.1-7 both: SUBACK and UNSUBACK carry the identifier of the request
3.1.0-1 both: the first packet from a client is CONNECT
3.1.0-2 server: a second CONNECT is a violation and disconnects
3.1.2-1 server: a wrong protocol name is not processed as this protocol
3.1.2-2 server: an unsupported protocol level gets return code 1, then the connection is closed
3.1.2-3 server: reserved connect flag set: disconnect
3.1.2-4 server: CleanSession 0 resumes the session or creates one, which is kept afterwards
3.1.2-5 server: QoS 1 and 2 messages for a disconnected session are stored
3.1.2-6 server: CleanSession 1 discards what was; its own state is not used again
3.1.2-7 server: retained messages outlive the session
3.1.2-8 server: a will is stored with the accepted connection and published unless DISCONNECT came
3.1.2-9 both: will flag 1: topic and message are present, will QoS and will retain are used
3.1.2-10 server: a will is removed once published or once DISCONNECT came
3.1.2-11 both: will flag 0: will QoS and retain are 0, topic and message absent
3.1.2-12 server: will flag 0: nothing is published at the end
3.1.2-13 both: will flag 0: will QoS must be 0
3.1.2-14 both: will QoS must not be 3
3.1.2-15 both: will flag 0: will retain must be 0
3.1.2-16 server: will retain 0: published as not retained
3.1.2-17 server: will retain 1: published as retained
3.1.2-18 both: user name flag 0: no user name in the payload
3.1.2-19 both: user name flag 1: a user name in the payload
3.1.2-20 both: password flag 0: no password in the payload
3.1.2-21 both: password flag 1: a password in the payload
3.1.2-22 both: no user name: no password either
3.1.2-23 client: sends something, at least PINGREQ, within the keep-alive time
3.1.2-24 server: silence for one and a half keep-alive times disconnects
3.1.3-1 both: payload order: client id, will topic, will message, user name, password
3.1.3-2 both: the client id identifies the state that is held
3.1.3-3 both: the client id is present and comes first
3.1.3-4 both: the client id is UTF-8
3.1.3-5 server: ids of 1 to 23 letters and digits are allowed
3.1.3-6 server: an empty id, where allowed, gets a unique one
3.1.3-7 both: an empty id needs CleanSession 1
3.1.3-8 server: an empty id with CleanSession 0: return code 2, then close
3.1.3-9 server: a rejected id: return code 2, then close
3.1.3-10 both: the will topic is UTF-8
3.1.3-11 both: the user name is UTF-8
3.1.4-1 server: a CONNECT that breaks section 3.1 closes the connection without CONNACK
3.1.4-2 server: a client id that is connected already: the older connection is closed
3.1.4-3 server: CleanSession is processed as section 3.1.2.4 says
3.1.4-4 server: a valid CONNECT is answered with return code 0
3.1.4-5 server: nothing after a rejected CONNECT is processed
3.2.0-1 server: the first packet to the client is CONNACK
3.2.2-1 server: CleanSession 1: session present 0
3.2.2-2 server: CleanSession 0 with a stored session: session present 1
3.2.2-3 server: no stored session: session present 0
3.2.2-4 server: a non-zero return code: session present 0
3.2.2-5 server: a non-zero return code: the connection is closed then
3.2.2-6 server: no return code fits: close without CONNACK
3.3.1-1 both: DUP is 1 on a PUBLISH that is sent again
3.3.1-2 both: DUP is 0 at QoS 0
3.3.1-3 server: DUP towards subscribers does not follow the DUP that came in
3.3.1-4 both: both QoS bits set closes the connection
3.3.1-5 server: RETAIN 1: message and QoS are stored for future subscribers
3.3.1-6 server: a new subscription gets the last retained message of each matching topic
3.3.1-7 server: RETAIN 1 at QoS 0 discards what was retained before
3.3.1-8 server: RETAIN is 1 on what a new subscription brings
3.3.1-9 server: RETAIN is 0 on what an established subscription brings
3.3.1-10 server: RETAIN 1 with no payload is delivered and removes the retained message
3.3.1-11 server: an empty message is not retained
3.3.1-12 server: RETAIN 0 neither stores nor replaces nor removes
3.3.2-1 both: the topic name comes first and is UTF-8
3.3.2-2 both: no wildcards in a topic name
3.3.2-3 server: the topic of a delivery matches the filter
3.3.4-1 both: the answer to a PUBLISH: none, PUBACK, PUBREC by its QoS
3.3.5-1 server: overlapping filters: delivered at the highest QoS of them
3.3.5-2 server: a publish that is not authorised is acknowledged or the connection is closed
3.6.1-1 both: PUBREL has flags 0010, anything else closes
3.8.1-1 both: SUBSCRIBE has flags 0010, anything else closes
3.8.3-1 both: filters in SUBSCRIBE are UTF-8
3.8.3-2 server: filters with wildcards are supported, or refused
3.8.3-3 both: SUBSCRIBE has at least one filter
3.8.3-4 server: reserved bits or QoS 3 in SUBSCRIBE close the connection
3.8.4-1 server: SUBSCRIBE is answered with SUBACK
3.8.4-2 server: SUBACK has the identifier of the SUBSCRIBE
3.8.4-3 server: an identical filter replaces, retained sent again, flow not interrupted
3.8.4-4 server: several filters count as several SUBSCRIBEs with one SUBACK
3.8.4-5 server: one return code a filter: the QoS granted, or failure
3.8.4-6 server: delivery at the lower of the published and the granted QoS
3.9.3-1 server: return codes in the order of the filters
3.9.3-2 server: no return code other than 0, 1, 2, 0x80
3.10.1-1 both: UNSUBSCRIBE has flags 0010, anything else closes
3.10.3-1 both: filters in UNSUBSCRIBE are UTF-8
3.10.3-2 both: UNSUBSCRIBE has at least one filter
3.10.4-1 server: filters are compared character by character; only an equal one is deleted
3.10.4-2 server: a deleted subscription gets no new messages
3.10.4-3 server: QoS 1 and 2 deliveries that were begun are finished
3.10.4-4 server: UNSUBACK with the identifier of the UNSUBSCRIBE
3.10.4-5 server: UNSUBACK also when nothing was deleted
3.10.4-6 server: several filters count as several UNSUBSCRIBEs with one UNSUBACK
3.12.4-1 server: PINGREQ is answered with PINGRESP
3.14.1-1 server: reserved bits of DISCONNECT not zero: disconnect
3.14.4-1 client: closes the connection after DISCONNECT
3.14.4-2 client: sends nothing after DISCONNECT
3.14.4-3 server: DISCONNECT discards the will
4.1.0-1 both: session state is kept for the whole session
4.1.0-2 both: a session lasts at least as long as its connection
4.3.1-1 both: QoS 0 is sent with QoS 0 and DUP 0
4.3.2-1 both: QoS 1 sender: unused identifier, DUP 0, unacknowledged until PUBACK
4.3.2-2 both: QoS 1 receiver: PUBACK; the same identifier afterwards is a new publication
4.3.3-1 both: QoS 2 sender: PUBLISH until PUBREC, then PUBREL until PUBCOMP, never PUBLISH again
4.3.3-2 both: QoS 2 receiver: PUBREC, delivered once until PUBREL, PUBCOMP, then new again
4.4.0-1 both: a resumed session: unacknowledged PUBLISH and PUBREL again, same identifiers
4.5.0-1 server: a message taken goes into every session with a matching subscription
4.5.0-2 client: acknowledges every PUBLISH whatever it does with it
4.6.0-1 both: PUBLISH packets are sent again in their first order
4.6.0-2 both: PUBACKs in the order of the PUBLISHes
4.6.0-3 both: PUBRECs in the order of the PUBLISHes
4.6.0-4 both: PUBRELs in the order of the PUBRECs
4.6.0-5 server: topics are ordered topics by default
4.6.0-6 server: messages of one client on one topic and QoS reach subscribers in order
4.7.1-1 both: wildcards in filters only, never in a topic name
4.7.1-2 both: # alone or after a separator, and last
4.7.1-3 both: + fills a whole level
4.7.2-1 server: a filter that starts with a wildcard does not match a topic that starts with $
4.7.3-1 both: names and filters have at least one character
4.7.3-2 both: names and filters do not contain U+0000
4.7.3-3 both: names and filters have up to 65,535 bytes
4.7.3-4 server: no normalisation of names or filters
4.8.0-1 both: a protocol violation closes the connection it came on
4.8.0-2 both: a transient error closes the connection whose packet met it
6.0.0-1 websocket: MQTT in binary data frames; another kind of frame closes
6.0.0-2 websocket: frames and packets need not line up
6.0.0-3 websocket: the client offers the subprotocol "mqtt"
6.0.0-4 websocket: the server answers with the subprotocol "mqtt"
7.0.0-1 server: a server that connects to other servers over MQTT conforms as a client too
7.0.0-2 both: no extension is needed to work together
7.1.1-1 server: offers a transport with an ordered, lossless stream of bytes
7.1.2-1 client: uses a transport with an ordered, lossless stream of bytes
"""

_REMARKS = {
    "7.0.0-1": "not applicable: nodes reach each other over links, never as MQTT clients",
    **{f"6.0.0-{number}": NO_WEBSOCKET for number in range(1, 5)},
}


def parse(text: str, remarks: dict[str, str]) -> dict[str, Statement]:
    """
    The statements of a text of lines `NUMBER WHO: WORDS`, by identifier.
    """
    found = {}
    for line in text.strip().splitlines():
        head, words = line.split(": ", 1)
        number, who = head.split()
        name = f"MQTT-{number}"
        found[name] = Statement(id=name, who=who, text=words, remark=remarks.get(number, ""))
    return found


STATEMENTS: dict[str, Statement] = parse(_TEXT, _REMARKS)
