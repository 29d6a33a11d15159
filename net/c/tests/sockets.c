/* A listener and a session of one engine, each with an attachment. */
#include "sidecore_net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int holds, const char *what, int64_t value) {
    if (!holds) {
        fprintf(stderr, "%s: %lld\n", what, (long long)value);
        exit(1);
    }
}

int main(int argc, char **argv) {
    struct sidecore_net *near, *far;
    static unsigned char sent[1 << 20], received[1 << 20];
    check(argc == 2, "arguments", argc);
    check(sidecore_net_attach(&near, "/nonexistent", 8) == -ENOENT, "no engine", 0);
    int failed = sidecore_net_attach(&near, argv[1], 0);
    check(failed == -EACCES, "no chunks", failed);
    failed = sidecore_net_attach(&near, argv[1], 8);
    check(!failed, "attach", failed);
    failed = sidecore_net_attach(&far, argv[1], 8);
    check(!failed, "attach", failed);

    struct sidecore_net_address at = sidecore_net_ipv4(192, 0, 2, 1, 80);
    check(sidecore_net_listen(NULL, at, 1) == -EINVAL, "no attachment", 0);
    check(sidecore_net_read(near, 77, received, 1) == -EBADF, "no socket", 0);
    int64_t refused = sidecore_net_connect(near, at);
    while (!(sidecore_net_readiness(near, refused) & SIDECORE_NET_CLOSED))
        check(sidecore_net_poll(near, 1000) >= 0, "poll", 0);
    check(sidecore_net_read(near, refused, received, 1) == -ECONNREFUSED, "refused", 0);
    sidecore_net_close(near, refused);

    int64_t listener = sidecore_net_listen(far, at, 16);
    check(listener >= 0, "listen", listener);
    check(sidecore_net_listen(far, at, 16) == -EADDRINUSE, "in use", 0);
    int64_t here = sidecore_net_connect(near, at), there;
    check(here >= 0, "connect", here);
    while ((there = sidecore_net_accept(far, listener, NULL)) == -EAGAIN)
        check(sidecore_net_poll(far, 1000) >= 0, "poll", 0);
    check(there >= 0, "accept", there);
    while (!(sidecore_net_readiness(near, here) & SIDECORE_NET_WRITABLE))
        check(sidecore_net_poll(near, 1000) >= 0, "poll", 0);
    sidecore_net_set(near, here, SIDECORE_NET_NO_DELAY, 1);

    for (size_t i = 0; i < sizeof sent; i++) sent[i] = (unsigned char)(i * 31 >> 7);
    size_t out = 0, back = 0;
    while (back < sizeof received) {
        if (out < sizeof sent) {
            ssize_t count = sidecore_net_write(near, here, sent + out, sizeof sent - out);
            check(count > 0 || count == -EAGAIN, "write", count);
            if (count > 0) out += (size_t)count;
        }
        check(sidecore_net_poll(far, 10) >= 0, "poll", 0);
        int64_t ready;
        while ((ready = sidecore_net_next_ready(far)) >= 0)
            check(ready == there || ready == listener, "ready", ready);
        struct sidecore_net_piece piece, buffer;
        memset(&piece, 0, sizeof piece);
        while (sidecore_net_buffer(far, &buffer) == 0) { /* an echo without a copy, but for this one */
            int got = sidecore_net_receive(far, there, &piece);
            if (got != 1) {
                check(got == -EAGAIN, "receive", got);
                sidecore_net_release(far, &buffer);
                break;
            }
            memcpy(buffer.data, piece.data, piece.bytes);
            failed = sidecore_net_send(far, there, &buffer, piece.bytes);
            check(!failed, "send", failed);
            sidecore_net_release(far, &piece);
        }
        check(sidecore_net_poll(near, 10) >= 0, "poll", 0);
        ssize_t count = sidecore_net_read(near, here, received + back, sizeof received - back);
        check(count > 0 || count == -EAGAIN, "read", count);
        if (count > 0) back += (size_t)count;
    }
    check(memcmp(sent, received, sizeof sent) == 0, "what came back", 0);

    struct sidecore_net_address udp_at = sidecore_net_ipv4(192, 0, 2, 1, 9);
    int64_t one = sidecore_net_bind_udp(near, sidecore_net_ipv4(192, 0, 2, 1, 8));
    int64_t other = sidecore_net_bind_udp(far, udp_at);
    check(one >= 0 && other >= 0, "bind", one);
    check(sidecore_net_send_to(near, one, udp_at, "hello", 5) == 0, "send_to", 0);
    struct sidecore_net_piece piece;
    memset(&piece, 0, sizeof piece);
    while ((failed = sidecore_net_receive(far, other, &piece)) == -EAGAIN)
        check(sidecore_net_poll(far, 1000) >= 0, "poll", 0);
    check(failed == 1 && piece.bytes == 5 && piece.peer.port == 8, "datagram", piece.peer.port);
    sidecore_net_release(far, &piece);
    sidecore_net_release(far, &piece); /* a second time is no error */
    check(sidecore_net_send(far, there, &piece, 1) == -EINVAL, "no buffer", 0);
    while ((failed = sidecore_net_buffer(far, &piece)) == -EAGAIN)
        check(sidecore_net_poll(far, 1000) >= 0, "poll", 0);
    check(failed == 0, "buffer", failed);
    size_t chunk = piece.bytes;
    piece.bytes = 2 * chunk; /* it is the program's to change */
    check(sidecore_net_send(far, there, &piece, chunk + 1) == -EMSGSIZE, "beyond its chunk", 0);
    /* Longer than a chunk, more of them than there are chunks. */
    check(sidecore_net_send_to(near, one, udp_at, sent, 65508) == -EMSGSIZE, "too long", 0);
    for (size_t bytes = 16384; bytes <= 65507; bytes += 3275) {
        while ((failed = sidecore_net_send_to(near, one, udp_at, sent, bytes)) == -EAGAIN)
            check(sidecore_net_poll(near, 1000) >= 0, "poll", 0);
        check(failed == 0, "a long datagram", failed);
        while ((failed = sidecore_net_receive(far, other, &piece)) == -EAGAIN)
            check(sidecore_net_poll(far, 1000) >= 0, "poll", 0);
        check(failed == 1 && piece.bytes == bytes, "its length", (int64_t)piece.bytes);
        check(memcmp(piece.data, sent, bytes) == 0, "its bytes", (int64_t)bytes);
        sidecore_net_release(far, &piece);
    }

    sidecore_net_shutdown(near, here);
    while ((failed = (int)sidecore_net_read(far, there, received, 1)) == -EAGAIN)
        check(sidecore_net_poll(far, 1000) >= 0, "poll", 0);
    check(failed == 0, "the end", failed);
    sidecore_net_close(far, there);
    sidecore_net_detach(near);
    puts("ready");
    fflush(stdout);
    while (sidecore_net_poll(far, 1000) >= 0) {}
    puts("the engine is gone");
    sidecore_net_detach(far);
    return 0;
}
