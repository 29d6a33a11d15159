/* Sockets of a sidecore engine, for C and C++: this header is all of it.
 *
 *     struct sidecore_net *net;
 *     if (sidecore_net_attach(&net, "/run/sidecore/net.sock", 256) == 0) {
 *         struct sidecore_net_address at = sidecore_net_ipv4(10, 77, 0, 2, 7);
 *         int64_t listener = sidecore_net_listen(net, at, 128);
 *         while (listener >= 0 && sidecore_net_poll(net, -1) >= 0) {
 *             int64_t s;
 *             while ((s = sidecore_net_next_ready(net)) >= 0)
 *                 ... accept on the listener, else read and write until -EAGAIN ...
 *         }
 *         sidecore_net_detach(net);
 *     }
 *
 * Calls return their result, or a negative errno: -EAGAIN if there is nothing now, -ECONNRESET,
 * -ECONNREFUSED, -EADDRINUSE and so on like the kernel's sockets; -ESHUTDOWN when the engine is
 * gone: detach, and attach again once it is back. Only sidecore_net_poll and calls that open a
 * socket (a round trip to the engine) block.
 *
 * Trust: only an engine of this process's own user or of root is used, whatever the path; any
 * other is refused before a byte is sent (-SIDECORE_NET_UNTRUSTED). A path of NULL selects the
 * default engine: the own user's ($XDG_RUNTIME_DIR/sidecore/net.sock, else
 * /tmp/sidecore-UID/net.sock), then the system's (/run/sidecore/net.sock).
 *
 * Readiness is edge-triggered as in epoll: sidecore_net_next_ready returns a socket once for each
 * change of its state. read, write and send_to copy; receive (release its result), buffer and send
 * do not. A datagram longer than a chunk is copied when it is received, too.
 *
 * Threads: one at a time uses an attachment; several threads may have one each. A child process
 * must not use its parent's. When a process ends, its sessions are reset.
 *
 * No library is needed. Needs Linux and GCC or Clang, C99 or C++11 or later; may be included in
 * any order. The protocol is net/engine/src/sock/README.md, version 2.
 */
#ifndef SIDECORE_NET_H
#define SIDECORE_NET_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a chunk: the most that one buffer holds. */
#define SIDECORE_NET_CHUNK 16384u

/* An address: IPv6, or IPv4 mapped into it. The port is in host order. */
struct sidecore_net_address {
    unsigned char ip[16];
    uint16_t port;
};

/* Bytes in place: received ones, or a buffer to fill. */
struct sidecore_net_piece {
    unsigned char *data;
    size_t bytes;
    struct sidecore_net_address peer; /* of a datagram */
    uint32_t chunk, chunks;           /* private from here on */
    int64_t socket;
    void *moved;
};

/* Result of sidecore_net_attach, negative, if the engine belongs to a user that is not trusted;
 * nothing was sent. */
#define SIDECORE_NET_UNTRUSTED EKEYREJECTED

/* Result of sidecore_net_readiness. */
enum {
    SIDECORE_NET_READABLE = 1, /* a session to accept, bytes, a datagram, or an end to see */
    SIDECORE_NET_WRITABLE = 2, /* open, and a buffer is free */
    SIDECORE_NET_ENDED = 4,    /* the peer sends no more */
    SIDECORE_NET_CLOSED = 8    /* it is over */
};

/* Options of sidecore_net_set. */
enum {
    SIDECORE_NET_NO_DELAY = 1,        /* 1: small segments go out at once */
    SIDECORE_NET_KEEPALIVE_S = 2,     /* probes after so much silence; 0: none */
    SIDECORE_NET_USER_TIMEOUT_MS = 3  /* how long data may stay unacknowledged; 0: the default */
};

/* ---- what follows is how it is done --------------------------------------------------------- */

#define SIDECORE_NET_MAGIC_ UINT64_C(0x3154454e45444953) /* "SIDENET1" */
#define SIDECORE_NET_VERSION_ 3u
#define SIDECORE_NET_NONE_ UINT32_C(0xffffffff)
#define SIDECORE_NET_MOVED_ UINT32_C(0x80000000)
#define SIDECORE_NET_MORE_ 1u /* the next entry goes on with this datagram */
#define SIDECORE_NET_DATAGRAM_CHUNKS_ 4u
#define SIDECORE_NET_ENTRIES_ 2048u
#define SIDECORE_NET_REQUESTS_ 4096u
#define SIDECORE_NET_EVENTS_ (4096u + 2048u * 64u)
#define SIDECORE_NET_CHUNKS_ (4096u + 2u * 2048u * 64u)

/* Strict standards hide these in headers that may have been included before this one. */
#ifdef POLLRDHUP
#define SIDECORE_NET_POLLRDHUP_ POLLRDHUP
#else
#define SIDECORE_NET_POLLRDHUP_ 0x2000
#endif
#ifdef MAP_POPULATE
#define SIDECORE_NET_POPULATE_ MAP_POPULATE
#else
#define SIDECORE_NET_POPULATE_ 0
#endif
#ifdef SO_PEERCRED
#define SIDECORE_NET_PEERCRED_ SO_PEERCRED
#elif defined(__x86_64__) || defined(__i386__) || defined(__aarch64__) || defined(__arm__) \
    || defined(__riscv)
#define SIDECORE_NET_PEERCRED_ 17
#else
#error "define _GNU_SOURCE before the first header on this machine"
#endif
#ifdef __GLIBC__
#ifdef __USE_MISC
#define SIDECORE_NET_HAS_SYSCALL_
#endif
#elif defined(_GNU_SOURCE) || defined(_BSD_SOURCE)
#define SIDECORE_NET_HAS_SYSCALL_
#endif
#if !defined(SIDECORE_NET_HAS_SYSCALL_) && !defined(__cplusplus)
extern long syscall(long number, ...);
#endif

/* With the kernel's layout. */
struct sidecore_net_time_ {
    long s, ns;
};

/* Received data, or a session to accept. */
struct sidecore_net_node_ {
    struct sidecore_net_node_ *next;
    struct sidecore_net_piece piece;
};

/* Moved chunks of a socket that were read. */
struct sidecore_net_credit_ {
    uint32_t socket, chunks;
};

struct sidecore_net_state_ {
    int used, udp, connected, ended, closed, error, queued;
    uint32_t number;
    struct sidecore_net_address local;
    unsigned char *begun; /* what has come of a datagram of which more is to come */
    size_t begun_bytes;
    uint32_t begun_chunks;
    struct sidecore_net_node_ *first, *last;
};

struct sidecore_net {
    int socket, bell, lost;
    uint32_t chunks, tag, held;
    unsigned char *map;
    size_t map_bytes;
    uint64_t request_next, request_taken, event_next, event_released;
    uint32_t *free_chunks, free_count; /* to send from */
    uint32_t *giving, giving_count;    /* to go back */
    struct sidecore_net_credit_ *credits;
    size_t credit_count, credit_room;
    struct sidecore_net_state_ *sockets;
    size_t socket_room;
    uint32_t *ready; /* a ring */
    size_t ready_first, ready_count, ready_room;
    int opened; /* the answer to `tag` is here: */
    int opened_error;
    uint32_t opened_socket;
    struct sidecore_net_address opened_address;
};

static inline uint32_t *sidecore_net_u32_(struct sidecore_net *net, size_t at) {
    return (uint32_t *)(void *)(net->map + at);
}
static inline uint64_t *sidecore_net_u64_(struct sidecore_net *net, size_t at) {
    return (uint64_t *)(void *)(net->map + at);
}

static inline int sidecore_net_errno_(uint32_t error) {
    static const int table[] = {0,          ECONNREFUSED, ECONNRESET,    ECONNABORTED,
                                ETIMEDOUT,  EHOSTUNREACH, EADDRINUSE,    EADDRNOTAVAIL,
                                ENOBUFS,    ENOTCONN,     EMSGSIZE,      EINVAL};
    return error < sizeof table / sizeof *table ? table[error] : EIO;
}

static inline int64_t sidecore_net_now_ms_(void) {
#ifdef CLOCK_MONOTONIC
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
#else
    struct sidecore_net_time_ t = {0, 0};
    syscall(SYS_clock_gettime, 1 /* CLOCK_MONOTONIC */, &t);
    return (int64_t)t.s * 1000 + t.ns / 1000000;
#endif
}

static inline struct sidecore_net_state_ *sidecore_net_state_(struct sidecore_net *net,
                                                              int64_t number) {
    size_t place = (size_t)number & 0xfffffu;
    if (number < 0 || place >= net->socket_room) return NULL;
    struct sidecore_net_state_ *state = &net->sockets[place];
    return state->used && state->number == (uint32_t)number ? state : NULL;
}

/* The state of a new socket, in a free place. NULL without memory. */
static inline struct sidecore_net_state_ *sidecore_net_insert_(struct sidecore_net *net,
                                                               uint32_t number) {
    size_t place = number & 0xfffffu;
    if (place >= net->socket_room) {
        size_t room = net->socket_room ? net->socket_room : 64;
        while (room <= place) room *= 2;
        void *more = realloc(net->sockets, room * sizeof *net->sockets);
        if (!more) return NULL;
        net->sockets = (struct sidecore_net_state_ *)more;
        memset(net->sockets + net->socket_room, 0,
               (room - net->socket_room) * sizeof *net->sockets);
        net->socket_room = room;
    }
    struct sidecore_net_state_ *state = &net->sockets[place];
    memset(state, 0, sizeof *state);
    state->used = 1;
    state->number = number;
    return state;
}

static inline void sidecore_net_note_ready_(struct sidecore_net *net, int64_t number) {
    struct sidecore_net_state_ *state = sidecore_net_state_(net, number);
    if (!state || state->queued) return;
    if (net->ready_count == net->ready_room) {
        size_t room = net->ready_room ? 2 * net->ready_room : 256;
        uint32_t *more = (uint32_t *)malloc(room * sizeof *more);
        if (!more) return;
        for (size_t i = 0; i < net->ready_count; i++)
            more[i] = net->ready[(net->ready_first + i) % net->ready_room];
        free(net->ready);
        net->ready = more;
        net->ready_first = 0;
        net->ready_room = room;
    }
    state->queued = 1;
    net->ready[(net->ready_first + net->ready_count++) % net->ready_room] = (uint32_t)number;
}

static inline void sidecore_net_append_(struct sidecore_net_state_ *state,
                                        struct sidecore_net_node_ *node) {
    node->next = NULL;
    if (state->last) state->last->next = node;
    else state->first = node;
    state->last = node;
}

static inline int sidecore_net_take_(struct sidecore_net_state_ *state,
                                     struct sidecore_net_piece *piece) {
    struct sidecore_net_node_ *node = state->first;
    if (!node) return 0;
    state->first = node->next;
    if (!state->first) state->last = NULL;
    *piece = node->piece;
    free(node);
    return 1;
}

static inline void sidecore_net_give_(struct sidecore_net *net, uint32_t give) {
    net->held--;
    net->giving[net->giving_count++] = give;
}

/* Reports that moved bytes were read. */
static inline void sidecore_net_release_moved_(struct sidecore_net *net,
                                               struct sidecore_net_piece *piece) {
    free(piece->moved);
    if (net->credit_count == net->credit_room) {
        size_t room = net->credit_room ? 2 * net->credit_room : 64;
        void *more = realloc(net->credits, room * sizeof *net->credits);
        if (!more) return; /* this socket may get less; others are unaffected */
        net->credits = (struct sidecore_net_credit_ *)more;
        net->credit_room = room;
    }
    net->credits[net->credit_count].socket = (uint32_t)piece->socket;
    net->credits[net->credit_count++].chunks = piece->chunks;
}

/* Returns received bytes. */
static inline void sidecore_net_release(struct sidecore_net *net,
                                        struct sidecore_net_piece *piece) {
    if (piece->moved) sidecore_net_release_moved_(net, piece);
    else sidecore_net_give_(net, piece->chunk);
}

static inline int sidecore_net_post_(struct sidecore_net *net, uint32_t kind, uint32_t socket,
                                     uint32_t tag, uint32_t bytes, uint32_t chunk,
                                     const struct sidecore_net_address *address,
                                     uint32_t argument);

static inline void sidecore_net_forget_(struct sidecore_net *net, int64_t number) {
    struct sidecore_net_state_ *state = sidecore_net_state_(net, number);
    struct sidecore_net_piece piece;
    if (!state) return;
    while (sidecore_net_take_(state, &piece)) {
        if (piece.data) {
            sidecore_net_release(net, &piece);
        } else { /* a session that was not accepted */
            sidecore_net_post_(net, 8, (uint32_t)piece.socket, 0, 0, SIDECORE_NET_NONE_, NULL, 0);
            state = sidecore_net_state_(net, number);
            if (!state) return;
        }
    }
    free(state->begun);
    state->begun = NULL;
    state->used = 0;
}

/* Keeps a part of a long datagram in private memory; after the last one, `piece` is the whole
 * datagram. 0, or -ENOMEM: the datagram is lost. */
static inline int sidecore_net_part_(struct sidecore_net_state_ *state,
                                     struct sidecore_net_piece *piece, int is_last) {
    if (!state->begun_chunks)
        state->begun = (unsigned char *)malloc(SIDECORE_NET_DATAGRAM_CHUNKS_ * SIDECORE_NET_CHUNK);
    if (state->begun && state->begun_chunks < SIDECORE_NET_DATAGRAM_CHUNKS_) {
        memcpy(state->begun + state->begun_bytes, piece->data, piece->bytes);
        state->begun_bytes += piece->bytes;
    }
    state->begun_chunks++;
    if (!is_last) return 0;
    piece->data = state->begun;
    piece->bytes = state->begun_bytes;
    piece->chunks = state->begun_chunks;
    piece->moved = state->begun;
    state->begun = NULL;
    state->begun_bytes = 0;
    state->begun_chunks = 0;
    return piece->moved ? 0 : -ENOMEM;
}

/* True if the rest of a datagram is still to come. */
static inline int sidecore_net_received_(struct sidecore_net *net, uint32_t socket, uint32_t chunk,
                                         uint32_t bytes, const struct sidecore_net_address *peer,
                                         uint32_t argument) {
    if (chunk >= net->chunks || bytes > SIDECORE_NET_CHUNK) return 0;
    net->held++;
    struct sidecore_net_state_ *state = sidecore_net_state_(net, socket);
    int is_part = state && state->udp && argument == SIDECORE_NET_MORE_;
    struct sidecore_net_piece whole;
    memset(&whole, 0, sizeof whole);
    whole.data = net->map + SIDECORE_NET_CHUNKS_ +
                 (size_t)(net->chunks + chunk) * SIDECORE_NET_CHUNK;
    whole.bytes = bytes;
    whole.peer = *peer;
    whole.chunk = chunk;
    whole.chunks = 1;
    whole.socket = socket;
    if (is_part || (state && state->begun_chunks)) {
        int failed = sidecore_net_part_(state, &whole, !is_part);
        sidecore_net_give_(net, chunk | SIDECORE_NET_MOVED_);
        if (is_part) return 1;
        if (failed) { /* as one that was read */
            sidecore_net_release_moved_(net, &whole);
            return 0;
        }
    }
    struct sidecore_net_node_ *node =
        state ? (struct sidecore_net_node_ *)malloc(sizeof *node) : NULL;
    if (!node) {
        sidecore_net_release(net, &whole);
        if (state) state->closed = 1, state->error = ENOMEM;
        return 0;
    }
    struct sidecore_net_piece *piece = &node->piece;
    *piece = whole;
    uint32_t kept = net->chunks / 4 > 4 ? net->chunks / 4 : 4;
    if (!piece->moved && net->held + kept > net->chunks) {
        /* Otherwise sockets that the program does not read would keep the others from receiving. */
        piece->moved = malloc(bytes ? bytes : 1);
        if (piece->moved) {
            memcpy(piece->moved, piece->data, bytes);
            piece->data = (unsigned char *)piece->moved;
            sidecore_net_give_(net, chunk | SIDECORE_NET_MOVED_);
        }
    }
    sidecore_net_append_(state, node);
    return 0;
}

/* Processes one event; 0 if there is none. */
static inline int sidecore_net_hear_(struct sidecore_net *net) {
    size_t at = SIDECORE_NET_EVENTS_ + (size_t)(net->event_next % SIDECORE_NET_ENTRIES_) * 64;
    if (__atomic_load_n(sidecore_net_u64_(net, at + 56), __ATOMIC_ACQUIRE) != net->event_next + 1)
        return 0;
    uint64_t w[7];
    for (size_t i = 0; i < 7; i++)
        w[i] = __atomic_load_n(sidecore_net_u64_(net, at + 8 * i), __ATOMIC_RELAXED);
    net->event_next++;
    if (net->event_next - net->event_released >= SIDECORE_NET_ENTRIES_ / 8) {
        __atomic_store_n(sidecore_net_u64_(net, 512), net->event_next, __ATOMIC_RELEASE);
        net->event_released = net->event_next;
    }
    uint32_t kind = (uint32_t)w[0], tag = (uint32_t)(w[0] >> 32);
    uint32_t socket = (uint32_t)w[1], bytes = (uint32_t)(w[1] >> 32);
    uint32_t chunk = (uint32_t)w[2], argument = (uint32_t)(w[5] >> 32);
    struct sidecore_net_address address;
    memcpy(address.ip, &w[3], 16);
    address.port = (uint16_t)w[5];
    struct sidecore_net_state_ *state = sidecore_net_state_(net, socket);
    int64_t ready = socket;
    switch (kind) {
    case 1: /* opened */
        if (tag == net->tag) {
            net->opened = 1;
            net->opened_error = sidecore_net_errno_(argument);
            net->opened_socket = socket;
            net->opened_address = address;
        }
        return 1;
    case 2: /* connected */
        if (state) state->connected = 1;
        break;
    case 3: { /* accepted */
        struct sidecore_net_state_ *fresh = sidecore_net_insert_(net, socket);
        struct sidecore_net_state_ *listener = sidecore_net_state_(net, argument);
        struct sidecore_net_node_ *node =
            fresh && listener ? (struct sidecore_net_node_ *)malloc(sizeof *node) : NULL;
        if (!node) {
            if (fresh) fresh->used = 0;
            sidecore_net_post_(net, 8, socket, 0, 0, SIDECORE_NET_NONE_, NULL, 0);
            return 1;
        }
        fresh->connected = 1;
        memset(&node->piece, 0, sizeof node->piece);
        node->piece.peer = address;
        node->piece.socket = socket;
        sidecore_net_append_(listener, node);
        ready = argument;
        break;
    }
    case 4: /* received */
        if (sidecore_net_received_(net, socket, chunk, bytes, &address, argument)) return 1;
        break;
    case 5: /* sent */
        if (chunk < net->chunks && net->free_count < net->chunks)
            net->free_chunks[net->free_count++] = chunk;
        break;
    case 6: /* ended */
        if (state) state->ended = 1;
        break;
    case 7: /* closed */
        if (state) state->closed = 1, state->error = sidecore_net_errno_(argument);
        break;
    default:
        return 1;
    }
    sidecore_net_note_ready_(net, ready);
    return 1;
}

static inline int sidecore_net_is_lost_(struct sidecore_net *net) {
    struct pollfd p = {net->socket, SIDECORE_NET_POLLRDHUP_, 0};
    if (!net->lost && poll(&p, 1, 0) > 0) net->lost = 1;
    return net->lost;
}

/* Wakes the engine if it sleeps. */
static inline void sidecore_net_ring_(struct sidecore_net *net) {
    /* Either the engine sees the request, or this side sees that the engine sleeps. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(sidecore_net_u32_(net, 128), __ATOMIC_RELAXED)) {
        uint64_t one = 1;
        ssize_t ignored = write(net->bell, &one, sizeof one);
        (void)ignored; /* it fails only where the bell rings already */
    }
}

static inline void sidecore_net_sleep_(struct sidecore_net *net, int64_t ms) {
    uint32_t *asleep = sidecore_net_u32_(net, 256);
    size_t at = SIDECORE_NET_EVENTS_ + (size_t)(net->event_next % SIDECORE_NET_ENTRIES_) * 64;
    struct sidecore_net_time_ limit = {(long)(ms / 1000), (long)(ms % 1000) * 1000000};
    __atomic_store_n(asleep, 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(sidecore_net_u64_(net, at + 56), __ATOMIC_ACQUIRE) != net->event_next + 1)
        syscall(SYS_futex, asleep, FUTEX_WAIT, 1, &limit, NULL, 0);
    __atomic_store_n(asleep, 0, __ATOMIC_RELAXED);
}

static inline int sidecore_net_post_(struct sidecore_net *net, uint32_t kind, uint32_t socket,
                                     uint32_t tag, uint32_t bytes, uint32_t chunk,
                                     const struct sidecore_net_address *address,
                                     uint32_t argument) {
    while (net->request_next - net->request_taken >= SIDECORE_NET_ENTRIES_) {
        net->request_taken = __atomic_load_n(sidecore_net_u64_(net, 384), __ATOMIC_ACQUIRE);
        if (net->request_next - net->request_taken < SIDECORE_NET_ENTRIES_) break;
        if (sidecore_net_is_lost_(net)) return -ESHUTDOWN;
        /* The engine is behind, or waits until its events are read; their handling may post
         * requests. */
        sidecore_net_ring_(net);
        if (!sidecore_net_hear_(net)) {
            struct sidecore_net_time_ pause = {0, 50000};
            syscall(SYS_nanosleep, &pause, NULL);
        }
    }
    uint32_t give = net->giving_count ? net->giving[--net->giving_count] : SIDECORE_NET_NONE_;
    uint64_t w[7] = {kind | (uint64_t)tag << 32, socket | (uint64_t)bytes << 32,
                     chunk | (uint64_t)give << 32, 0, 0, (uint64_t)argument << 32, 0};
    if (address) {
        memcpy(&w[3], address->ip, 16);
        w[5] |= address->port;
    }
    size_t at = SIDECORE_NET_REQUESTS_ + (size_t)(net->request_next % SIDECORE_NET_ENTRIES_) * 64;
    for (size_t i = 0; i < 7; i++)
        __atomic_store_n(sidecore_net_u64_(net, at + 8 * i), w[i], __ATOMIC_RELAXED);
    net->request_next++;
    __atomic_store_n(sidecore_net_u64_(net, at + 56), net->request_next, __ATOMIC_RELEASE);
    sidecore_net_ring_(net);
    return 0;
}

static inline int sidecore_net_give_back_(struct sidecore_net *net, uint32_t keep) {
    int failed = 0;
    while (!failed && net->giving_count > keep)
        failed = sidecore_net_post_(net, 5, SIDECORE_NET_NONE_, 0, 0, SIDECORE_NET_NONE_, NULL, 0);
    while (!failed && net->credit_count) {
        struct sidecore_net_credit_ credit = net->credits[--net->credit_count];
        failed = sidecore_net_post_(net, 10, credit.socket, 0, 0, SIDECORE_NET_NONE_, NULL,
                                    credit.chunks);
    }
    return failed;
}

/* ---- attaching ------------------------------------------------------------------------------ */

/* Detaches from an engine, which resets all sessions. */
static inline void sidecore_net_detach(struct sidecore_net *net) {
    if (!net) return;
    for (size_t place = 0; place < net->socket_room; place++) {
        struct sidecore_net_piece piece;
        while (net->sockets[place].used && sidecore_net_take_(&net->sockets[place], &piece))
            free(piece.moved);
        free(net->sockets[place].begun);
    }
    if (net->map) munmap(net->map, net->map_bytes);
    if (net->bell >= 0) close(net->bell);
    if (net->socket >= 0) close(net->socket);
    free(net->free_chunks);
    free(net->giving);
    free(net->credits);
    free(net->sockets);
    free(net->ready);
    free(net);
}

/* A one-line text for an error of sidecore_net_attach. */
static inline const char *sidecore_net_attach_text(int error) {
    switch (error < 0 ? -error : error) {
    case 0:
        return "attached";
    case SIDECORE_NET_UNTRUSTED:
        return "the engine there belongs to a user who is neither this one nor root; nothing was "
               "sent to it";
    case ENOENT:
    case ECONNREFUSED:
        return "no engine serves there; start one with `sidecore net up`";
    case EACCES:
        return "the engine refuses this user; `sidecore net status` says why";
    case EPROTO:
        return "the engine is of another version; use the same release for both";
    case ETIMEDOUT:
        return "the engine does not answer; is it stopped?";
    default:
        return strerror(error < 0 ? -error : error);
    }
}

/* Connects to the engine at `path`, and checks its user. A socket, or a negative errno. */
static inline int sidecore_net_connect_to_(const char *path, int64_t trusted_uid) {
    struct { /* struct ucred, which strict standards hide */
        int pid;
        unsigned uid, gid;
    } peer = {0, 0, 0};
    socklen_t length = sizeof peer;
    struct timeval patience = {5, 0};
    struct sockaddr_un address;
    int error, sock;
    if (strlen(path) >= sizeof address.sun_path) return -ENAMETOOLONG;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path, strlen(path));
    sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0) return -errno;
    /* Limit of connect while the engine is behind. */
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(sock, (const struct sockaddr *)(const void *)&address, sizeof address) != 0)
        error = errno == EAGAIN ? ETIMEDOUT : errno;
    else if (getsockopt(sock, SOL_SOCKET, SIDECORE_NET_PEERCRED_, &peer, &length) != 0)
        error = errno;
    else if (peer.uid != 0 && peer.uid != (unsigned)geteuid() &&
             (int64_t)peer.uid != trusted_uid)
        error = SIDECORE_NET_UNTRUSTED;
    else
        return sock;
    close(sock);
    return -error;
}

/* The same at the default paths: the own user's first, then the system's. */
static inline int sidecore_net_connect_default_(int64_t trusted_uid) {
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const char *system_path = "/run/sidecore/net.sock";
    unsigned uid = (unsigned)geteuid();
    int sock, system_sock, length;
    if (uid == 0) return sidecore_net_connect_to_(system_path, trusted_uid);
    if (runtime && *runtime)
        length = snprintf(path, sizeof path, "%s/sidecore/net.sock", runtime);
    else
        length = snprintf(path, sizeof path, "/tmp/sidecore-%u/net.sock", uid);
    sock = length < (int)sizeof path ? sidecore_net_connect_to_(path, trusted_uid) : -ENAMETOOLONG;
    if (sock >= 0) return sock;
    system_sock = sidecore_net_connect_to_(system_path, trusted_uid);
    return system_sock >= 0 ? system_sock : sock;
}

/* As sidecore_net_attach, and trusts an engine of `trusted_uid`, too; -1: no additional user. */
static inline int sidecore_net_attach_trusting(struct sidecore_net **out, const char *path,
                                               uint32_t chunks, int64_t trusted_uid) {
    struct sidecore_net *net = (struct sidecore_net *)calloc(1, sizeof *net);
    int failed = -ENOMEM;
    if (!net) return failed;
    net->socket = net->bell = -1;
    net->chunks = chunks;
    net->free_chunks = (uint32_t *)malloc(chunks * sizeof(uint32_t) + 1);
    /* Each chunk is in it at most once, except one that was moved and lent again. */
    net->giving = (uint32_t *)malloc(2 * (size_t)chunks * sizeof(uint32_t) + 1);
    do {
        if (!net->free_chunks || !net->giving) break;
        net->socket = path ? sidecore_net_connect_to_(path, trusted_uid)
                           : sidecore_net_connect_default_(trusted_uid);
        if (net->socket < 0) {
            failed = net->socket;
            break;
        }
        uint32_t question[8] = {0, 0, 1, SIDECORE_NET_VERSION_, chunks, 0, 0, 0};
        uint64_t magic = SIDECORE_NET_MAGIC_;
        memcpy(question, &magic, sizeof magic);
        /* An engine that refuses may have hung up by now, after sending the reason. */
        (void)!send(net->socket, question, sizeof question, MSG_NOSIGNAL);
        uint64_t answer[64];
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(2 * sizeof(int))];
        } control;
        struct iovec piece = {answer, sizeof answer};
        struct msghdr message;
        memset(&message, 0, sizeof message);
        message.msg_iov = &piece;
        message.msg_iovlen = 1;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct pollfd polled = {net->socket, POLLIN, 0};
        failed = -ETIMEDOUT;
        if (poll(&polled, 1, 5000) != 1) break;
        ssize_t length = recvmsg(net->socket, &message, MSG_CMSG_CLOEXEC);
        if (length < 0 && errno == ECONNRESET) /* said once, before what still waits */
            length = recvmsg(net->socket, &message, MSG_CMSG_CLOEXEC);
        int files[2] = {-1, -1};
        struct cmsghdr *header = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
        if (header && header->cmsg_type == SCM_RIGHTS &&
            header->cmsg_len == CMSG_LEN(sizeof files))
            memcpy(files, CMSG_DATA(header), sizeof files);
        net->bell = files[1];
        failed = -EPROTO;
        if (length >= 16 && answer[0] == SIDECORE_NET_MAGIC_ && (uint32_t)answer[1] == 255)
            failed = -EACCES;
        net->map_bytes = SIDECORE_NET_CHUNKS_ + 2 * (size_t)chunks * SIDECORE_NET_CHUNK;
        struct stat about;
        if (length == 32 && answer[0] == SIDECORE_NET_MAGIC_ &&
            answer[1] == (1 | (uint64_t)SIDECORE_NET_VERSION_ << 32) && answer[2] == chunks &&
            answer[3] == net->map_bytes && files[0] >= 0 && fstat(files[0], &about) == 0 &&
            (uint64_t)about.st_size == net->map_bytes &&
            (fcntl(files[0], 1034 /* F_GET_SEALS */) & 6) == 6 /* F_SEAL_SHRINK, F_SEAL_GROW */) {
            void *map = mmap(NULL, net->map_bytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED | SIDECORE_NET_POPULATE_, files[0], 0);
            failed = map == MAP_FAILED ? -errno : 0;
            if (!failed) net->map = (unsigned char *)map;
        }
        if (files[0] >= 0) close(files[0]);
    } while (0);
    if (failed) {
        sidecore_net_detach(net);
        return failed;
    }
    while (net->free_count < chunks) {
        net->free_chunks[net->free_count] = chunks - 1 - net->free_count;
        net->free_count++;
    }
    *out = net;
    return 0;
}

/* Attaches to the engine at `path` (NULL: the default paths) with `chunks` chunks of 16 KiB for
 * each direction. 0, or a negative errno, for which sidecore_net_attach_text has a text: -ENOENT
 * and -ECONNREFUSED if there is no engine, -SIDECORE_NET_UNTRUSTED if it belongs to another
 * user, -EACCES if it refuses, -EPROTO for another version, -ETIMEDOUT after 5 s. */
static inline int sidecore_net_attach(struct sidecore_net **out, const char *path,
                                      uint32_t chunks) {
    return sidecore_net_attach_trusting(out, path, chunks, -1);
}

/* ---- sockets -------------------------------------------------------------------------------- */

/* a.b.c.d:port */
static inline struct sidecore_net_address sidecore_net_ipv4(uint8_t a, uint8_t b, uint8_t c,
                                                            uint8_t d, uint16_t port) {
    struct sidecore_net_address address = {
        {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d}, port};
    return address;
}

static inline int64_t sidecore_net_open_(struct sidecore_net *net, uint32_t kind,
                                         struct sidecore_net_address address,
                                         uint32_t argument) {
    net->tag++;
    net->opened = 0;
    int failed = sidecore_net_post_(net, kind, SIDECORE_NET_NONE_, net->tag, 0,
                                    SIDECORE_NET_NONE_, &address, argument);
    while (!failed && !net->opened)
        if (!sidecore_net_hear_(net)) {
            if (sidecore_net_is_lost_(net)) failed = -ESHUTDOWN;
            else sidecore_net_sleep_(net, 50);
        }
    if (failed) return failed;
    if (net->opened_error) return -net->opened_error;
    struct sidecore_net_state_ *state = sidecore_net_insert_(net, net->opened_socket);
    if (!state) return -ENOMEM;
    state->udp = kind == 3;
    state->local = net->opened_address;
    return net->opened_socket;
}

/* Listens for TCP sessions. A socket, or a negative errno. */
static inline int64_t sidecore_net_listen(struct sidecore_net *net,
                                          struct sidecore_net_address local, uint32_t backlog) {
    return sidecore_net_open_(net, 1, local, backlog);
}

/* Begins to open a TCP session; it becomes writable once it is open. */
static inline int64_t sidecore_net_connect(struct sidecore_net *net,
                                           struct sidecore_net_address peer) {
    return sidecore_net_open_(net, 2, peer, 0);
}

/* Opens a UDP socket. */
static inline int64_t sidecore_net_bind_udp(struct sidecore_net *net,
                                            struct sidecore_net_address local) {
    return sidecore_net_open_(net, 3, local, 0);
}

/* The next session in a listener's accept queue, and its peer (may be NULL). */
static inline int64_t sidecore_net_accept(struct sidecore_net *net, int64_t listener,
                                          struct sidecore_net_address *peer) {
    struct sidecore_net_state_ *state = sidecore_net_state_(net, listener);
    struct sidecore_net_piece piece;
    if (!state) return -EBADF;
    if (!sidecore_net_take_(state, &piece)) return -EAGAIN;
    if (peer) *peer = piece.peer;
    return piece.socket;
}

/* Result without data: 0 at the end, else a negative errno. */
static inline int sidecore_net_nothing_(struct sidecore_net *net,
                                        const struct sidecore_net_state_ *state) {
    if (state->closed) return -state->error;
    if (state->ended) return 0;
    return net->lost ? -ESHUTDOWN : -EAGAIN;
}

/* Received bytes or a datagram, in place: 1, or 0 at the end. Release them. */
static inline int sidecore_net_receive(struct sidecore_net *net, int64_t socket,
                                       struct sidecore_net_piece *piece) {
    struct sidecore_net_state_ *state = sidecore_net_state_(net, socket);
    if (!state) return -EBADF;
    return sidecore_net_take_(state, piece) ? 1 : sidecore_net_nothing_(net, state);
}

/* Copies received bytes; their number, 0 at the end. */
static inline ssize_t sidecore_net_read(struct sidecore_net *net, int64_t socket, void *target,
                                        size_t bytes) {
    struct sidecore_net_state_ *state = sidecore_net_state_(net, socket);
    size_t done = 0;
    if (!state) return -EBADF;
    while (done < bytes && state->first) {
        struct sidecore_net_piece *piece = &state->first->piece;
        size_t count = piece->bytes < bytes - done ? piece->bytes : bytes - done;
        memcpy((unsigned char *)target + done, piece->data, count);
        done += count;
        piece->data += count;
        piece->bytes -= count;
        if (piece->bytes == 0) {
            struct sidecore_net_piece whole = *piece;
            sidecore_net_take_(state, &whole);
            sidecore_net_release(net, &whole);
        }
    }
    return done ? (ssize_t)done : sidecore_net_nothing_(net, state);
}

/* Memory to fill and send: SIDECORE_NET_CHUNK bytes. 0, or -EAGAIN while all is in use. */
static inline int sidecore_net_buffer(struct sidecore_net *net, struct sidecore_net_piece *piece) {
    for (int i = 0; !net->free_count && i < 1024 && sidecore_net_hear_(net); i++) {}
    if (!net->free_count) return -EAGAIN;
    memset(piece, 0, sizeof *piece);
    piece->chunk = net->free_chunks[--net->free_count];
    piece->data = net->map + SIDECORE_NET_CHUNKS_ + (size_t)piece->chunk * SIDECORE_NET_CHUNK;
    piece->bytes = SIDECORE_NET_CHUNK;
    return 0;
}

static inline int sidecore_net_check_(struct sidecore_net *net, int64_t socket, int udp) {
    struct sidecore_net_state_ *state = sidecore_net_state_(net, socket);
    if (!state) return -EBADF;
    if (net->lost) return -ESHUTDOWN;
    if (state->closed) return state->error ? -state->error : -EPIPE;
    return (udp ? state->udp : state->connected) ? 0 : -ENOTCONN;
}

/* Sends the first `bytes` bytes of a buffer, which is free again if that fails. */
static inline int sidecore_net_send(struct sidecore_net *net, int64_t socket,
                                    struct sidecore_net_piece *piece, size_t bytes) {
    int failed = bytes > SIDECORE_NET_CHUNK ? -EMSGSIZE : sidecore_net_check_(net, socket, 0);
    if (!failed)
        failed = sidecore_net_post_(net, 4, (uint32_t)socket, 0, (uint32_t)bytes, piece->chunk,
                                    NULL, 0);
    if (failed) net->free_chunks[net->free_count++] = piece->chunk;
    return failed;
}

/* Sends a copy, as far as there are buffers. */
static inline ssize_t sidecore_net_write(struct sidecore_net *net, int64_t socket,
                                         const void *source, size_t bytes) {
    size_t done = 0;
    int failed = sidecore_net_check_(net, socket, 0);
    while (!failed && done < bytes) {
        struct sidecore_net_piece piece;
        size_t count = bytes - done < SIDECORE_NET_CHUNK ? bytes - done : SIDECORE_NET_CHUNK;
        failed = sidecore_net_buffer(net, &piece);
        if (failed) break;
        memcpy(piece.data, (const unsigned char *)source + done, count);
        failed = sidecore_net_send(net, socket, &piece, count);
        if (!failed) done += count;
    }
    return done ? (ssize_t)done : failed;
}

/* Sends a datagram of up to 65,507 bytes (IPv6: 65,527); it is lost silently if there is no
 * route. It takes a buffer for each SIDECORE_NET_CHUNK bytes. */
static inline int sidecore_net_send_to(struct sidecore_net *net, int64_t socket,
                                       struct sidecore_net_address peer, const void *source,
                                       size_t bytes) {
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    size_t most = memcmp(peer.ip, mapped, sizeof mapped) ? 65527 : 65507;
    uint32_t chunks = bytes ? (uint32_t)((bytes - 1) / SIDECORE_NET_CHUNK + 1) : 1;
    int failed = bytes > most || chunks > net->chunks ? -EMSGSIZE
                                                      : sidecore_net_check_(net, socket, 1);
    for (int i = 0; net->free_count < chunks && i < 1024 && sidecore_net_hear_(net); i++) {}
    if (!failed && net->free_count < chunks) failed = -EAGAIN;
    for (uint32_t i = 0; !failed && i < chunks; i++) {
        struct sidecore_net_piece piece;
        size_t from = (size_t)i * SIDECORE_NET_CHUNK, part = bytes - from;
        int is_last = i + 1 == chunks;
        if (!is_last) part = SIDECORE_NET_CHUNK;
        failed = sidecore_net_buffer(net, &piece);
        if (failed) break;
        memcpy(piece.data, (const unsigned char *)source + from, part);
        failed = sidecore_net_post_(net, 4, (uint32_t)socket, 0, (uint32_t)part, piece.chunk, &peer,
                                    is_last ? 0 : SIDECORE_NET_MORE_);
    }
    return failed;
}

/* Ends sending after all queued data. */
static inline int sidecore_net_shutdown(struct sidecore_net *net, int64_t socket) {
    return sidecore_net_post_(net, 6, (uint32_t)socket, 0, 0, SIDECORE_NET_NONE_, NULL, 0);
}

/* Closes a socket after all queued data was sent. */
static inline int sidecore_net_close(struct sidecore_net *net, int64_t socket) {
    sidecore_net_forget_(net, socket);
    return sidecore_net_post_(net, 7, (uint32_t)socket, 0, 0, SIDECORE_NET_NONE_, NULL, 0);
}

/* Closes a socket now; a session is reset. */
static inline int sidecore_net_abort(struct sidecore_net *net, int64_t socket) {
    sidecore_net_forget_(net, socket);
    return sidecore_net_post_(net, 8, (uint32_t)socket, 0, 0, SIDECORE_NET_NONE_, NULL, 0);
}

/* Sets an option of a session, or of a listener for its future sessions: 1 no delay, 2 seconds
 * of silence before keepalive, 3 user timeout in milliseconds, 4 and 5 bytes of the send and the
 * receive buffer, 6 the largest segment. */
static inline int sidecore_net_set(struct sidecore_net *net, int64_t socket, uint32_t option,
                                   uint32_t value) {
    return sidecore_net_post_(net, 9, (uint32_t)socket, 0, value, SIDECORE_NET_NONE_, NULL,
                              option);
}

/* Readiness of a socket. */
static inline int sidecore_net_readiness(struct sidecore_net *net, int64_t socket) {
    struct sidecore_net_state_ *state = sidecore_net_state_(net, socket);
    if (!state) return 0;
    int readable = state->first || state->ended || state->closed;
    int writable = (state->connected || state->udp) && !state->closed && net->free_count;
    return (readable ? SIDECORE_NET_READABLE : 0) | (writable ? SIDECORE_NET_WRITABLE : 0) |
           (state->ended ? SIDECORE_NET_ENDED : 0) | (state->closed ? SIDECORE_NET_CLOSED : 0);
}

/* The local address of a socket. */
static inline int sidecore_net_local(struct sidecore_net *net, int64_t socket,
                                     struct sidecore_net_address *local) {
    struct sidecore_net_state_ *state = sidecore_net_state_(net, socket);
    if (!state) return -EBADF;
    *local = state->local;
    return 0;
}

/* The next socket whose state has changed since it was last returned; -EAGAIN if there is none. */
static inline int64_t sidecore_net_next_ready(struct sidecore_net *net) {
    while (net->ready_count) {
        int64_t number = net->ready[net->ready_first];
        struct sidecore_net_state_ *state = sidecore_net_state_(net, number);
        net->ready_first = (net->ready_first + 1) % net->ready_room;
        net->ready_count--;
        if (state && state->queued) {
            state->queued = 0;
            return number;
        }
    }
    return -EAGAIN;
}

/* Processes events; if there are none, waits for some, at most the given milliseconds (-1: no
 * limit). The number of events. */
static inline int sidecore_net_poll(struct sidecore_net *net, int timeout_ms) {
    int64_t until = timeout_ms < 0 ? INT64_MAX : sidecore_net_now_ms_() + timeout_ms;
    uint32_t keep = net->chunks / 32 < 4 ? net->chunks / 32 : 4;
    int spins = 0;
    for (;;) {
        int count = 0;
        while (count < 1024 && sidecore_net_hear_(net)) count++;
        if (count || timeout_ms == 0) {
            int failed = sidecore_net_give_back_(net, keep);
            return failed ? failed : count;
        }
        if (spins < 2000) { /* some ten microseconds */
            if (spins++ == 0) {
                int failed = sidecore_net_give_back_(net, 0);
                if (failed) return failed;
            }
            continue;
        }
        if (sidecore_net_is_lost_(net)) return -ESHUTDOWN;
        int64_t left = until == INT64_MAX ? 50 : until - sidecore_net_now_ms_();
        if (left <= 0) return 0;
        sidecore_net_sleep_(net, left < 50 ? left : 50);
    }
}

#ifdef __cplusplus
}
#endif
#endif
