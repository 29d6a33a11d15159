/* Sockets of a sidecore engine, for C and C++.
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
 * -ECONNREFUSED, -EADDRINUSE and so on like the kernel's sockets; -EINVAL for a NULL pointer that
 * must not be one; -ESHUTDOWN when the engine is gone: detach, and attach again once it is back.
 * Only sidecore_net_poll and calls that open a socket (a round trip to the engine) block.
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
 * Link with -lsidecore_net. C99 or C++11 or later.
 */
#ifndef SIDECORE_NET_H
#define SIDECORE_NET_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An attachment to an engine. */
struct sidecore_net;

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
    uint32_t lent;                    /* private */
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
    SIDECORE_NET_USER_TIMEOUT_MS = 3, /* how long data may stay unacknowledged; 0: the default */
    SIDECORE_NET_SEND_BYTES = 4,      /* of the send buffer, 4,096 to 8 MiB */
    SIDECORE_NET_RECEIVE_BYTES = 5,   /* of the receive buffer, 4,096 to 8 MiB */
    SIDECORE_NET_SEGMENT_BYTES = 6,   /* the largest segment, 88 to 32,767; before the SYN */
    SIDECORE_NET_TRAFFIC_CLASS = 8    /* traffic class, without ECN's two bits; of UDP, too */
};

/* Attaches to the engine at `path` (NULL: the default paths) with `chunks` chunks of 16 KiB for
 * each direction, 1 to 4,096. 0, or a negative errno, for which sidecore_net_attach_text has a
 * text: -ENOENT and -ECONNREFUSED if there is no engine, -SIDECORE_NET_UNTRUSTED if it belongs to
 * another user, -EACCES if it refuses, -EPROTO for another version, -ETIMEDOUT after 5 s. */
int sidecore_net_attach(struct sidecore_net **out, const char *path, uint32_t chunks);

/* As sidecore_net_attach, and trusts an engine of `trusted_uid`, too; -1: no additional user. */
int sidecore_net_attach_trusting(struct sidecore_net **out, const char *path, uint32_t chunks,
                                 int64_t trusted_uid);

/* A one-line text for an error of sidecore_net_attach. */
const char *sidecore_net_attach_text(int error);

/* Detaches from an engine, which resets all sessions. NULL is no error. */
void sidecore_net_detach(struct sidecore_net *net);

/* a.b.c.d:port */
static inline struct sidecore_net_address sidecore_net_ipv4(uint8_t a, uint8_t b, uint8_t c,
                                                            uint8_t d, uint16_t port) {
    struct sidecore_net_address address = {
        {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d}, port};
    return address;
}

/* Listens for TCP sessions. A socket, or a negative errno. */
int64_t sidecore_net_listen(struct sidecore_net *net, struct sidecore_net_address local,
                            uint32_t backlog);

/* Begins to open a TCP session; it becomes writable once it is open. */
int64_t sidecore_net_connect(struct sidecore_net *net, struct sidecore_net_address peer);

/* Opens a UDP socket. */
int64_t sidecore_net_bind_udp(struct sidecore_net *net, struct sidecore_net_address local);

/* The next session in a listener's accept queue, and its peer (may be NULL). */
int64_t sidecore_net_accept(struct sidecore_net *net, int64_t listener,
                            struct sidecore_net_address *peer);

/* Received bytes or a datagram, in place: 1, or 0 at the end. Release them. */
int sidecore_net_receive(struct sidecore_net *net, int64_t socket,
                         struct sidecore_net_piece *piece);

/* Returns received bytes, or a buffer that will not be sent. */
void sidecore_net_release(struct sidecore_net *net, struct sidecore_net_piece *piece);

/* Copies received bytes; their number, 0 at the end. */
ssize_t sidecore_net_read(struct sidecore_net *net, int64_t socket, void *target, size_t bytes);

/* Memory to fill and send: SIDECORE_NET_CHUNK bytes. 0, or -EAGAIN while all is in use. */
int sidecore_net_buffer(struct sidecore_net *net, struct sidecore_net_piece *piece);

/* Sends the first `bytes` bytes of a buffer, which is free again if that fails. */
int sidecore_net_send(struct sidecore_net *net, int64_t socket, struct sidecore_net_piece *piece,
                      size_t bytes);

/* Sends a copy, as far as there are buffers. */
ssize_t sidecore_net_write(struct sidecore_net *net, int64_t socket, const void *source,
                           size_t bytes);

/* Sends a datagram of up to 65,507 bytes (IPv6: 65,527); it is lost silently if there is no
 * route. It takes a buffer for each SIDECORE_NET_CHUNK bytes. */
int sidecore_net_send_to(struct sidecore_net *net, int64_t socket,
                         struct sidecore_net_address peer, const void *source, size_t bytes);

/* Ends sending after all queued data. */
int sidecore_net_shutdown(struct sidecore_net *net, int64_t socket);

/* Closes a socket after all queued data was sent. */
int sidecore_net_close(struct sidecore_net *net, int64_t socket);

/* Closes a socket now; a session is reset. */
int sidecore_net_abort(struct sidecore_net *net, int64_t socket);

/* Sets an option of a session, or of a listener for its future sessions. */
int sidecore_net_set(struct sidecore_net *net, int64_t socket, uint32_t option, uint32_t value);

/* Readiness of a socket: a sum of SIDECORE_NET_READABLE and so on. */
int sidecore_net_readiness(struct sidecore_net *net, int64_t socket);

/* The local address of a socket. */
int sidecore_net_local(struct sidecore_net *net, int64_t socket,
                       struct sidecore_net_address *address);

/* The next socket whose state has changed since it was last returned; -EAGAIN if there is none. */
int64_t sidecore_net_next_ready(struct sidecore_net *net);

/* Processes events; if there are none, waits for some, at most the given milliseconds (-1: no
 * limit). The number of events. */
int sidecore_net_poll(struct sidecore_net *net, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
