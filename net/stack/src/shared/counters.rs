//! Counters of a stack since it was made.

/// Counters; they only grow. Read with [`crate::Stack::counters`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Frames received, and handed to the NIC.
    pub frames_received: u64,
    /// Frames handed to the NIC that are no segments of sessions.
    pub control_sent: u64,
    /// Segments handed to the NIC; a super-segment counts once.
    pub segments_sent: u64,
    /// Frames whose lengths or versions do not fit.
    pub malformed: u64,
    /// Packets whose source no host may have: loopback, a group, all hosts, one of our own
    /// addresses from outside (RFC 1122 section 3.2.1.3, RFC 4291 sections 2.5.3 and 2.7).
    pub martians: u64,
    /// IPv4 packets with a source route, all refused.
    pub source_routed: u64,
    /// IPv6 packets with an option that forbids going on where it is not known (RFC 8200 section
    /// 4.2).
    pub options_refused: u64,
    /// Packets with a wrong checksum.
    pub bad_checksums: u64,
    /// Fragments received.
    pub fragments_received: u64,
    /// Packets that were put together from fragments.
    pub packets_reassembled: u64,
    /// Packets that were not whole in time.
    pub reassemblies_late: u64,
    /// Packets whose fragments contradicted one another, or that no honest sender makes.
    pub reassemblies_refused: u64,
    /// Packets that made room for fragments of others before they were whole.
    pub reassemblies_evicted: u64,
    /// Packets sent in fragments.
    pub packets_fragmented: u64,
    /// Fragments sent.
    pub fragments_sent: u64,
    /// Packets for others.
    pub not_ours: u64,
    /// Segments outside the window.
    pub unacceptable: u64,
    /// Segments with old timestamps (RFC 7323).
    pub paws: u64,
    /// Challenge acknowledgments (RFC 5961).
    pub challenges: u64,
    /// Segments kept out of order.
    pub out_of_order: u64,
    /// Segments whose payload the NIC put where the application reads it.
    pub landed: u64,
    /// Bytes that went from one session of the stack to another without segments.
    pub across_bytes: u64,
    /// Segments dropped because no buffer was left.
    pub no_memory: u64,
    /// Resets that ended a session.
    pub resets_received: u64,
    /// Resets sent.
    pub resets_sent: u64,
    /// Sessions that were established.
    pub opened: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Times that loss was found without a timeout.
    pub recoveries: u64,
    /// Windows that had been lowered for what was only late, and are as before (RFC 3708, RFC
    /// 4015).
    pub undone: u64,
    /// Sessions that were established with ECN (RFC 3168 section 6.1.1).
    pub ecn_sessions: u64,
    /// Those among them in which both ends count marks (RFC 9768 section 3.1).
    pub accurate_ecn_sessions: u64,
    /// Marked packets that peers have told of in such sessions (RFC 9768 section 3.2.2.2).
    pub accurate_ecn_reported: u64,
    /// Data segments of sessions with ECN that came with a mark, congestion experienced (RFC 3168
    /// section 5); where marks are counted, all packets (RFC 9768 section 3.2).
    pub ecn_ce_received: u64,
    /// Windows that were lowered because a peer echoed a mark (RFC 3168 section 6.1.2).
    pub ecn_reductions: u64,
    /// Tail-loss probes (RFC 8985).
    pub tail_probes: u64,
    /// Delayed acknowledgments whose time ran out.
    pub delayed_acks: u64,
    /// SYN cookies sent, and those that came back good.
    pub cookies_sent: u64,
    /// Sessions made of a SYN cookie.
    pub cookies_accepted: u64,
    /// SYNs dropped because a listener's queue was full.
    pub listen_overflows: u64,
    /// Paths that turned out to take less (RFC 8201).
    pub paths_shrunk: u64,
    /// Datagrams received and given to a socket.
    pub datagrams_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams dropped because their socket's queue was full.
    pub datagrams_dropped: u64,
    /// Searches for a session, and those that the local store's tags answered.
    pub searches: u64,
    /// See `searches`.
    pub search_hits: u64,
}
