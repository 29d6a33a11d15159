//! Counters of a stack since its creation.

/// Counters; they only grow. Read with [`crate::Stack::counters`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Frames received from the NIC.
    pub frames_received: u64,
    /// Frames passed to the NIC that are not segments of sessions.
    pub control_sent: u64,
    /// Segments passed to the NIC; a super-segment counts once.
    pub segments_sent: u64,
    /// Frames with invalid lengths or versions.
    pub malformed: u64,
    /// Packets with a source that no host may have: loopback, a group, broadcast, one of our own
    /// addresses from outside (RFC 1122 section 3.2.1.3, RFC 4291 sections 2.5.3 and 2.7).
    pub martians: u64,
    /// IPv4 packets with a source route, all rejected.
    pub source_routed: u64,
    /// IPv6 packets with an unknown option that forbids further processing (RFC 8200 section 4.2).
    pub options_refused: u64,
    /// Packets with a wrong checksum.
    pub bad_checksums: u64,
    /// Fragments received.
    pub fragments_received: u64,
    /// Packets reassembled from fragments.
    pub packets_reassembled: u64,
    /// Packets whose reassembly timed out.
    pub reassemblies_late: u64,
    /// Packets whose fragments contradicted each other, or that no honest sender makes.
    pub reassemblies_refused: u64,
    /// Incomplete packets evicted by fragments of others.
    pub reassemblies_evicted: u64,
    /// Packets sent in fragments.
    pub packets_fragmented: u64,
    /// Fragments sent.
    pub fragments_sent: u64,
    /// Packets for other hosts.
    pub not_ours: u64,
    /// Segments outside the window.
    pub unacceptable: u64,
    /// Segments with old timestamps (RFC 7323).
    pub paws: u64,
    /// Challenge acknowledgments (RFC 5961).
    pub challenges: u64,
    /// Segments kept out of order.
    pub out_of_order: u64,
    /// Segments whose payload the NIC placed directly into the receive ring.
    pub direct_placements: u64,
    /// Bytes copied from one session of the stack to another without segments.
    pub across_bytes: u64,
    /// Segments dropped because no buffer was left.
    pub no_memory: u64,
    /// Resets that ended a session.
    pub resets_received: u64,
    /// Resets sent.
    pub resets_sent: u64,
    /// Sessions that were established.
    pub opened: u64,
    /// Segments retransmitted.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Losses detected without a timeout.
    pub recoveries: u64,
    /// Window reductions that were undone because the data was only late (RFC 3708, RFC 4015).
    pub undone: u64,
    /// Sessions that were established with ECN (RFC 3168 section 6.1.1).
    pub ecn_sessions: u64,
    /// Of these, sessions in which both ends count marks (RFC 9768 section 3.1).
    pub accurate_ecn_sessions: u64,
    /// Marked packets that peers reported in such sessions (RFC 9768 section 3.2.2.2).
    pub accurate_ecn_reported: u64,
    /// Data segments of sessions with ECN that arrived with congestion experienced (RFC 3168
    /// section 5); if marks are counted, all packets (RFC 9768 section 3.2).
    pub ecn_ce_received: u64,
    /// Window reductions because a peer echoed a mark (RFC 3168 section 6.1.2).
    pub ecn_reductions: u64,
    /// Tail-loss probes (RFC 8985).
    pub tail_probes: u64,
    /// Delayed acknowledgments whose timer expired.
    pub delayed_acks: u64,
    /// SYN cookies sent.
    pub cookies_sent: u64,
    /// Sessions created from a SYN cookie.
    pub cookies_accepted: u64,
    /// SYNs dropped because a listener's queue was full.
    pub listen_overflows: u64,
    /// Paths with a smaller MTU than expected (RFC 8201).
    pub paths_shrunk: u64,
    /// Datagrams received and passed to a socket.
    pub datagrams_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams dropped because their socket's queue was full.
    pub datagrams_dropped: u64,
    /// Session look-ups.
    pub searches: u64,
    /// Of these, look-ups answered by the local store's tags.
    pub search_hits: u64,
}
