//! Counters of a stack since its creation.
//!
//! Why a macro: the counters are listed here only. Must stay true: the engine's status and packet
//! scripts have their names, so a field that is renamed keeps its name there (`field = "name"`).

macro_rules! counters {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    ($($(#[$doc:meta])* $field:ident $(= $name:literal)?,)*) => {
        /// Counters; they only grow. Read with [`crate::Stack::counters`].
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Counters {
            /// Each counter with its name, in a fixed order.
            pub fn named(&self) -> impl ExactSizeIterator<Item = (&'static str, u64)> {
                [$((counters!(@name $field $($name)?), self.$field)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Frames received from the NIC.
    frames_received,
    /// Frames passed to the NIC that are not segments of sessions.
    control_sent,
    /// Segments passed to the NIC; a super-segment counts once.
    segments_sent,
    /// Frames with invalid lengths or versions.
    malformed,
    /// Packets with a source that no host may have: loopback, a group, broadcast, one of our own
    /// addresses from outside (RFC 1122 section 3.2.1.3, RFC 4291 sections 2.5.3 and 2.7).
    martians,
    /// IPv4 packets with a source route, all rejected.
    source_routed,
    /// IPv6 packets with an unknown option that forbids further processing (RFC 8200 section 4.2).
    options_refused,
    /// Packets that the filter did not allow.
    filtered,
    /// Packets with a wrong checksum.
    bad_checksums,
    /// Fragments received.
    fragments_received,
    /// Packets reassembled from fragments.
    packets_reassembled,
    /// Packets whose reassembly timed out.
    reassemblies_late,
    /// Packets whose fragments contradicted each other, or that no honest sender makes.
    reassemblies_refused,
    /// Incomplete packets evicted by fragments of others.
    reassemblies_evicted,
    /// Packets sent in fragments.
    packets_fragmented,
    /// Fragments sent.
    fragments_sent,
    /// Packets for other hosts.
    not_ours,
    /// Segments outside the window.
    unacceptable,
    /// Segments with old timestamps (RFC 7323).
    paws,
    /// Challenge acknowledgments (RFC 5961).
    challenges,
    /// Segments kept out of order.
    out_of_order,
    /// Segments whose payload the NIC placed directly into the receive ring.
    direct_placements = "landed",
    /// Bytes copied from one session of the stack to another without segments.
    across_bytes,
    /// Segments dropped because no buffer was left.
    no_memory,
    /// Resets that ended a session.
    resets_received,
    /// Resets sent.
    resets_sent,
    /// Sessions that were established.
    opened,
    /// Segments retransmitted.
    retransmitted,
    /// Retransmission timeouts.
    timeouts,
    /// Losses detected without a timeout.
    recoveries,
    /// Window reductions that were undone because the data was only late (RFC 3708, RFC 4015).
    undone,
    /// Sessions that were established with ECN (RFC 3168 section 6.1.1).
    ecn_sessions,
    /// Of these, sessions in which both ends count marks (RFC 9768 section 3.1).
    accurate_ecn_sessions,
    /// Marked packets that peers reported in such sessions (RFC 9768 section 3.2.2.2).
    accurate_ecn_reported,
    /// Data segments of sessions with ECN that arrived with congestion experienced (RFC 3168
    /// section 5); if marks are counted, all packets (RFC 9768 section 3.2).
    ecn_ce_received,
    /// Window reductions because a peer echoed a mark (RFC 3168 section 6.1.2).
    ecn_reductions,
    /// Tail-loss probes (RFC 8985).
    tail_probes,
    /// Delayed acknowledgments whose timer expired.
    delayed_acks,
    /// Paths with a smaller MTU than expected (RFC 8201).
    paths_shrunk,
    /// SYNs dropped because a listener's queue was full.
    listen_overflows,
    /// SYN cookies sent.
    cookies_sent,
    /// Sessions created from a SYN cookie.
    cookies_accepted,
    /// Datagrams received and passed to a socket.
    datagrams_received,
    /// Datagrams sent.
    datagrams_sent,
    /// Datagrams dropped because their socket's queue was full.
    datagrams_dropped,
    /// Session look-ups.
    searches,
    /// Of these, look-ups answered by the local store's tags.
    search_hits,
}
