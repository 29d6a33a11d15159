/* sendmmsg and recvmmsg, of datagrams and of a stream. */
#include "_case.h"

int main(void)
{
    int server = bound(SOCK_DGRAM), client = bound(SOCK_DGRAM);
    struct sockaddr_in to = name_of(server), from[8];
    char texts[8][16], buffers[8][16];
    struct iovec out[8], in[8];
    struct mmsghdr sent[8], got[8];
    memset(sent, 0, sizeof sent);
    memset(got, 0, sizeof got);
    for (int i = 0; i < 8; i++) {
        size_t length = (size_t)snprintf(texts[i], 16, "message %d", i);
        out[i] = (struct iovec){texts[i], length - (i == 3)};
        in[i] = (struct iovec){buffers[i], i == 5 ? 4 : 16};
        sent[i].msg_hdr = (struct msghdr){&to, sizeof to, &out[i], 1, NULL, 0, 0};
        got[i].msg_hdr = (struct msghdr){&from[i], sizeof from[i], &in[i], 1, NULL, 0, 0};
    }
    TELL(sendmmsg(client, sent, 8, 0));
    TELL(recvmmsg(server, got, 8, MSG_WAITFORONE, NULL));
    struct sockaddr_in own = name_of(client);
    for (int i = 0; i < 8; i++)
        printf("%u %.*s %s %s\n", sent[i].msg_len, (int)got[i].msg_len, buffers[i],
               got[i].msg_hdr.msg_flags & MSG_TRUNC ? "cut" : "whole",
               from[i].sin_port == own.sin_port ? "from the client" : "from another");
    TELL(recvmmsg(server, got, 8, MSG_DONTWAIT, NULL));
    struct timespec limit = {0, 50000000};
    TELL(sendmmsg(client, sent, 2, 0));
    TELL(recvmmsg(server, got, 2, 0, &limit));
    NEED(connect(client, (struct sockaddr *)&to, sizeof to));
    for (int i = 0; i < 8; i++)
        sent[i].msg_hdr.msg_name = NULL, sent[i].msg_hdr.msg_namelen = 0;
    TELL(sendmmsg(client, sent, 3, 0));
    TELL(recvmmsg(server, got, 8, MSG_WAITFORONE, NULL));
    int ends[2];
    pair(ends);
    TELL(sendmmsg(ends[0], sent, 8, 0));
    char all[200];
    TELL(recv(ends[1], all, 71, MSG_WAITALL));
    printf("%.*s\n", 71, all);
    return 0;
}
