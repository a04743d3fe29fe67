"""
All normative statements of MQTT 5.0 (OASIS Standard, 7 March 2019, appendix B), in own words.

As `statements` for MQTT 3.1.1: this list is the authority on which identifiers exist, and `who` has
the same values. A test names a statement with `@level5_statement(...)`.
"""

from __future__ import annotations

import pytest

from .statements import NO_WEBSOCKET, Statement, parse

level5_statement = pytest.mark.level5_statement

_TEXT = """
1.5.4-1 both: text is well-formed UTF-8, without surrogates
1.5.4-2 both: text has no U+0000
1.5.4-3 both: EF BB BF is the character U+FEFF anywhere, never skipped or stripped
1.5.5-1 both: a variable byte integer has as few bytes as its value needs
1.5.7-1 both: both strings of a pair are UTF-8
2.1.3-1 both: reserved flag bits carry the values of the table, anything else is malformed
2.2.1-2 both: no packet identifier in a PUBLISH at QoS 0
2.2.1-3 both: a client's new SUBSCRIBE, UNSUBSCRIBE, PUBLISH has an identifier that is free, not 0
2.2.1-4 server: the same for the server's own PUBLISH at QoS 1 and 2
2.2.1-5 both: PUBACK, PUBREC, PUBREL, PUBCOMP carry the identifier of the PUBLISH
2.2.1-6 server: SUBACK and UNSUBACK carry the identifier of the request
2.2.2-1 both: no properties are a property length of 0
3.1.0-1 both: the first packet from a client is CONNECT
3.1.0-2 server: a second CONNECT is a protocol error and closes
3.1.2-1 server: another protocol name: CONNACK 0x84 is allowed, closing is not optional
3.1.2-2 server: another protocol version: CONNACK 0x84 is allowed, closing is not optional
3.1.2-3 both: the reserved connect flag is 0, else the packet is malformed
3.1.2-4 server: clean start 1 discards what was and starts a new session
3.1.2-5 server: clean start 0 resumes a session that there is
3.1.2-6 server: clean start 0 creates a session where there is none
3.1.2-7 server: will flag 1: the will is stored with the session
3.1.2-8 server: the will is published after the end, by delay and session, unless it was removed
3.1.2-9 both: will flag 1: will properties, topic and payload are present
3.1.2-10 server: a will is removed once published or once DISCONNECT 0x00 came
3.1.2-11 both: will flag 0: will QoS is 0
3.1.2-12 both: will QoS is not 3
3.1.2-13 both: will flag 0: will retain is 0
3.1.2-14 server: will retain 0: published as not retained
3.1.2-15 server: will retain 1: published as retained
3.1.2-16 both: user name flag 0: no user name in the payload
3.1.2-17 both: user name flag 1: a user name in the payload
3.1.2-18 both: password flag 0: no password in the payload
3.1.2-19 both: password flag 1: a password in the payload
3.1.2-20 client: sends something, at least PINGREQ, within the keep-alive time
3.1.2-21 client: uses the server's keep-alive time if it got one
3.1.2-22 server: silence for one and a half keep-alive times closes, as a failed network does
3.1.2-23 both: a session with an expiry above 0 is kept after the connection
3.1.2-24 server: no packet is larger than the client's maximum packet size
3.1.2-25 server: what is too large for a client is dropped, and counts as sent
3.1.2-26 server: no topic alias above the client's maximum
3.1.2-27 server: no topic alias for a client without a maximum
3.1.2-28 server: response information only where it was asked for
3.1.2-29 server: request problem information 0: reasons in PUBLISH, CONNACK, DISCONNECT only
3.1.2-30 both: with an authentication method, AUTH or DISCONNECT alone before CONNACK
3.1.3-1 both: payload order: client id, will properties, topic, payload, user name, password
3.1.3-2 both: the client id identifies the state that is held
3.1.3-3 both: the client id is present and comes first
3.1.3-4 both: the client id is UTF-8
3.1.3-5 server: ids of 1 to 23 letters and digits are allowed
3.1.3-6 server: an empty id, where allowed, gets a unique one
3.1.3-7 server: the id that was assigned is told in CONNACK and used
3.1.3-8 server: a rejected id: CONNACK 0x85 is allowed, closing is not optional
3.1.3-9 server: no will if the session goes on before the will delay is over
3.1.3-10 server: user properties of a will keep their order
3.1.3-11 both: the will topic is UTF-8
3.1.3-12 both: the user name is UTF-8
3.1.4-1 server: a CONNECT that breaks section 3.1 closes
3.1.4-2 server: further checks of a CONNECT that fail close
3.1.4-3 server: a client id that is connected already: DISCONNECT 0x8E there, and close
3.1.4-4 server: clean start is processed
3.1.4-5 server: a valid CONNECT is answered with CONNACK 0x00
3.1.4-6 server: nothing after a rejected CONNECT is processed, except AUTH
3.2.0-1 server: CONNACK comes before any other packet, except AUTH
3.2.0-2 server: a connection has one CONNACK
3.2.2-1 server: reserved CONNACK flags are 0
3.2.2-2 server: clean start 1: session present 0
3.2.2-3 server: clean start 0: session present says whether there was a session
3.2.2-4 client: without a session, closes on session present 1
3.2.2-5 client: with a session, discards it on session present 0
3.2.2-6 server: a reason code other than 0: session present 0
3.2.2-7 server: a reason code of 0x80 or more: closed then
3.2.2-8 server: CONNACK has a reason code of its table
3.2.2-9 server: without QoS 1 or 2, tells the maximum QoS
3.2.2-10 server: without QoS 1 or 2, takes SUBSCRIBE of any QoS
3.2.2-11 client: publishes at no QoS above the maximum that it got
3.2.2-12 server: a will above the QoS that is supported is refused
3.2.2-13 server: a retained will where nothing is retained is refused
3.2.2-14 client: retains nothing where the server said so
3.2.2-15 both: sends nothing larger than the server's maximum packet size
3.2.2-16 server: an assigned client id is nobody else's
3.2.2-17 both: no topic alias above the server's maximum
3.2.2-18 both: no topic alias at a server without a maximum
3.2.2-19 server: no reason string that makes CONNACK too large
3.2.2-20 server: no user property that makes CONNACK too large
3.2.2-21 client: uses the server's keep-alive time instead of its own
3.2.2-22 server: without a keep-alive time of its own, uses the client's
3.3.1-1 both: DUP is 1 on a PUBLISH that is sent again
3.3.1-2 both: DUP is 0 at QoS 0
3.3.1-3 server: DUP towards subscribers does not follow the DUP that came in
3.3.1-4 both: QoS 3 is malformed
3.3.1-5 server: RETAIN 1: the message replaces what was retained
3.3.1-6 server: RETAIN 1 with no payload is delivered and removes the retained message
3.3.1-7 server: an empty message is not retained
3.3.1-8 server: RETAIN 0 neither stores nor replaces nor removes
3.3.1-9 server: retain handling 0: retained messages at each SUBSCRIBE
3.3.1-10 server: retain handling 1: retained messages for a new subscription only
3.3.1-11 server: retain handling 2: no retained messages
3.3.1-12 server: retain as published 0: RETAIN is 0 on what is passed on
3.3.1-13 server: retain as published 1: RETAIN is the publisher's
3.3.2-1 both: the topic name comes first and is UTF-8
3.3.2-2 both: no wildcards in a topic name
3.3.2-3 server: the topic of a delivery matches the filter
3.3.2-4 server: the payload format indicator is passed on unchanged
3.3.2-5 server: a message that has expired before its delivery began is deleted
3.3.2-6 server: what is left of the expiry interval is passed on
3.3.2-7 both: topic aliases end with the connection
3.3.2-8 both: no topic alias 0
3.3.2-9 both: no topic alias above the server's maximum
3.3.2-10 client: takes every alias up to its own maximum
3.3.2-11 server: no topic alias above the client's maximum
3.3.2-12 server: takes every alias up to its own maximum
3.3.2-13 both: the response topic is UTF-8
3.3.2-14 both: no wildcards in a response topic
3.3.2-15 server: the response topic is passed on unchanged
3.3.2-16 server: correlation data is passed on unchanged
3.3.2-17 server: user properties are passed on unchanged
3.3.2-18 server: user properties keep their order
3.3.2-19 both: the content type is UTF-8
3.3.2-20 server: the content type is passed on unchanged
3.3.4-1 both: the answer to a PUBLISH: none, PUBACK, PUBREC by its QoS
3.3.4-2 server: overlapping filters: delivered at the highest QoS of them
3.3.4-3 server: a delivery has the identifiers of its subscriptions
3.3.4-4 server: one copy has the identifiers of all subscriptions
3.3.4-5 server: several copies have the identifier of their subscription each
3.3.4-6 both: a client's PUBLISH has no subscription identifier
3.3.4-7 both: a client has no more open QoS 1 and 2 publishes than the server's receive maximum
3.3.4-8 client: delays no other packet for the receive maximum
3.3.4-9 server: no more open QoS 1 and 2 publishes than the client's receive maximum
3.3.4-10 server: delays no other packet for the receive maximum
3.4.2-1 both: PUBACK has a reason code of its table
3.4.2-2 both: no reason string that makes PUBACK too large
3.4.2-3 both: no user property that makes PUBACK too large
3.5.2-1 both: PUBREC has a reason code of its table
3.5.2-2 both: no reason string that makes PUBREC too large
3.5.2-3 both: no user property that makes PUBREC too large
3.6.1-1 both: PUBREL has flags 0010, anything else is malformed
3.6.2-1 both: PUBREL has a reason code of its table
3.6.2-2 both: no reason string that makes PUBREL too large
3.6.2-3 both: no user property that makes PUBREL too large
3.7.2-1 both: PUBCOMP has a reason code of its table
3.7.2-2 both: no reason string that makes PUBCOMP too large
3.7.2-3 both: no user property that makes PUBCOMP too large
3.8.1-1 both: SUBSCRIBE has flags 0010, anything else is malformed
3.8.3-1 both: filters in SUBSCRIBE are UTF-8
3.8.3-2 both: SUBSCRIBE has at least one filter with options
3.8.3-3 server: no local: nothing that the same client id has published
3.8.3-4 both: no local of a shared subscription is a protocol error
3.8.3-5 both: reserved bits of the options are 0, else the packet is malformed
3.8.4-1 server: SUBSCRIBE is answered with SUBACK
3.8.4-2 server: SUBACK has the identifier of the SUBSCRIBE
3.8.4-3 server: an identical filter that is not shared replaces
3.8.4-4 server: replacing with retain handling 0 sends retained again, and loses nothing
3.8.4-5 server: several filters count as several SUBSCRIBEs with one SUBACK
3.8.4-6 server: one reason code a filter
3.8.4-7 server: the reason code is the QoS granted, or a failure
3.8.4-8 server: delivery at the lower of the published and the granted QoS
3.9.2-1 server: no reason string that makes SUBACK too large
3.9.2-2 server: no user property that makes SUBACK too large
3.9.3-1 server: reason codes in the order of the filters
3.9.3-2 server: SUBACK has reason codes of its table
3.10.1-1 both: UNSUBSCRIBE has flags 0010, anything else is malformed
3.10.3-1 both: filters in UNSUBSCRIBE are UTF-8
3.10.3-2 both: UNSUBSCRIBE has at least one filter
3.10.4-1 server: filters are compared character by character; only an equal one is deleted
3.10.4-2 server: a deleted subscription gets no new messages
3.10.4-3 server: QoS 1 and 2 deliveries that were begun are finished
3.10.4-4 server: UNSUBSCRIBE is answered with UNSUBACK
3.10.4-5 server: with the same identifier, also when nothing was deleted
3.10.4-6 server: several filters count as several UNSUBSCRIBEs with one UNSUBACK
3.11.2-1 server: no reason string that makes UNSUBACK too large
3.11.2-2 server: no user property that makes UNSUBACK too large
3.11.3-1 server: reason codes in the order of the filters
3.11.3-2 server: UNSUBACK has reason codes of its table
3.12.4-1 server: PINGREQ is answered with PINGRESP
3.14.0-1 server: no DISCONNECT before a CONNACK below 0x80
3.14.1-1 both: reserved bits of DISCONNECT are 0, anything else is malformed
3.14.2-1 both: DISCONNECT has a reason code of its table
3.14.2-2 server: no session expiry in the server's DISCONNECT
3.14.2-3 both: no reason string that makes DISCONNECT too large
3.14.2-4 both: no user property that makes DISCONNECT too large
3.14.4-1 both: sends nothing after DISCONNECT
3.14.4-2 both: closes the connection after DISCONNECT
3.14.4-3 server: DISCONNECT 0x00 discards the will
3.15.1-1 both: reserved bits of AUTH are 0, anything else is malformed
3.15.2-1 both: AUTH has a reason code of its table
3.15.2-2 both: no reason string that makes AUTH too large
3.15.2-3 both: no user property that makes AUTH too large
4.1.0-1 both: session state is kept while the connection is open
4.1.0-2 server: session state is discarded when the connection is closed and the expiry is over
4.2.0-1 both: offers a transport with an ordered, lossless stream of bytes
4.3.1-1 both: QoS 0 is sent with QoS 0 and DUP 0
4.3.2-1 both: QoS 1 sender: an unused identifier for each new message
4.3.2-2 both: QoS 1 sender: DUP is 0 at first
4.3.2-3 both: QoS 1 sender: unacknowledged until PUBACK
4.3.2-4 both: QoS 1 receiver: PUBACK once it has taken the message over
4.3.2-5 both: QoS 1 receiver: the same identifier after PUBACK is a new message
4.3.3-1 both: QoS 2 sender: an unused identifier for each new message
4.3.3-2 both: QoS 2 sender: DUP is 0 at first
4.3.3-3 both: QoS 2 sender: unacknowledged until PUBREC
4.3.3-4 both: QoS 2 sender: PUBREL after a PUBREC below 0x80
4.3.3-5 both: QoS 2 sender: PUBREL is unacknowledged until PUBCOMP
4.3.3-6 both: QoS 2 sender: no PUBLISH again after PUBREL
4.3.3-7 both: QoS 2 sender: no expiry of a message that was sent
4.3.3-8 both: QoS 2 receiver: PUBREC once it has taken the message over
4.3.3-9 both: QoS 2 receiver: the same identifier after a PUBREC of 0x80 or more is a new message
4.3.3-10 both: QoS 2 receiver: until PUBREL, the same identifier is not delivered again
4.3.3-11 both: QoS 2 receiver: PUBCOMP after PUBREL
4.3.3-12 both: QoS 2 receiver: the same identifier after PUBCOMP is a new message
4.3.3-13 both: QoS 2 receiver: goes on with the acknowledgements of an expired message
4.4.0-1 both: a resumed session: unacknowledged PUBLISH and PUBREL again, at no other time
4.4.0-2 both: PUBACK or PUBREC of 0x80 or more ends the message
4.5.0-1 server: a message taken goes into every session with a matching subscription
4.5.0-2 client: acknowledges every PUBLISH whatever it does with it
4.6.0-1 client: PUBLISH packets are sent again in their first order
4.6.0-2 client: PUBACKs in the order of the PUBLISHes
4.6.0-3 client: PUBRECs in the order of the PUBLISHes
4.6.0-4 client: PUBRELs in the order of the PUBRECs
4.6.0-5 server: messages of one client on one topic and QoS reach subscribers in order
4.6.0-6 server: topics are ordered topics for all subscriptions that are not shared
4.7.0-1 both: wildcards in filters only, never in a topic name
4.7.1-1 both: # alone or after a separator, and last
4.7.1-2 both: + fills a whole level
4.7.2-1 server: a filter that starts with a wildcard does not match a topic that starts with $
4.7.3-1 both: names and filters have at least one character
4.7.3-2 both: names and filters do not contain U+0000
4.7.3-3 both: names and filters have up to 65,535 bytes
4.7.3-4 server: no normalisation of names or filters
4.8.2-1 both: a shared subscription begins with $share/ and a name of at least one character
4.8.2-2 both: the name has no /, + or #, and / and a filter follow it
4.8.2-3 server: a member gets messages at the QoS that was granted to it
4.8.2-4 server: a QoS 2 delivery that was begun is finished with the same member
4.8.2-5 server: and goes to no other, if the member's session ends before
4.8.2-6 server: a message that a member refuses goes to no other
4.9.0-1 both: the send quota begins above 0, and not above the receive maximum
4.9.0-2 both: no QoS 1 or 2 PUBLISH at a send quota of 0
4.9.0-3 both: all other packets go on at a send quota of 0
4.12.0-1 server: another authentication method: CONNACK 0x8C or 0x87 is allowed, then close
4.12.0-2 server: an AUTH that asks for more has the reason 0x18
4.12.0-3 both: a client's AUTH that goes on has the reason 0x18
4.12.0-4 server: an authentication that is refused closes
4.12.0-5 both: AUTH and CONNACK have the authentication method of CONNECT
4.12.0-6 server: CONNECT without a method: neither AUTH nor a method in CONNACK
4.12.0-7 both: CONNECT without a method: the client sends no AUTH
4.12.1-1 both: re-authentication has the method of CONNECT
4.12.1-2 server: a re-authentication that fails closes
4.13.1-1 server: a malformed packet or protocol error closes the connection
4.13.2-1 both: CONNACK or DISCONNECT of 0x80 or more closes, whether it was sent or not
6.0.0-1 websocket: MQTT in binary data frames; another kind of frame closes
6.0.0-2 websocket: frames and packets need not line up
6.0.0-3 websocket: the client offers the subprotocol "mqtt"
6.0.0-4 websocket: the server answers with the subprotocol "mqtt"
"""

_ALL_QOS = "not applicable: all QoS are supported, and CONNACK names no maximum"
_NO_AUTH = "not applicable: no authentication method is accepted, so no AUTH is sent"

_REMARKS = {
    **{f"3.2.2-{number}": _ALL_QOS for number in (9, 10, 12)},
    "3.2.2-18": "not applicable: a server takes at least one topic alias",
    "3.2.2-13": "not applicable: retained messages are supported",
    "3.3.4-5": "not applicable: overlapping subscriptions get one copy",
    **dict.fromkeys(("3.15.2-2", "3.15.2-3", "4.12.0-2", "4.12.0-5"), _NO_AUTH),
    **{f"6.0.0-{number}": NO_WEBSOCKET for number in range(1, 5)},
}

LEVEL5_STATEMENTS: dict[str, Statement] = parse(_TEXT, _REMARKS)
