/* recvmsg and sendmsg: lengths of names on a stream and a datagram, many pieces, wrong memory. */
#include "_case.h"

int main(void)
{
    int ends[2], server = bound(SOCK_DGRAM), client = bound(SOCK_DGRAM);
    char buffer[64];
    struct sockaddr_storage name;
    struct sockaddr_in to = name_of(server);
    struct iovec pieces[1024];
    pair(ends);
    for (int i = 0; i < 1024; i++)
        pieces[i] = (struct iovec){"z", 1};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 1024};
    TELL(sendmsg(ends[0], &message, 0));
    message.msg_iovlen = 1025;
    TELL(sendmsg(ends[0], &message, 0));
    char many[1024];
    TELL(recv(ends[1], many, sizeof many, MSG_WAITALL));
    NEED(send(ends[0], "stream", 6, 0));
    struct iovec in = {buffer, sizeof buffer};
    message = (struct msghdr){&name, sizeof name, &in, 1, NULL, 0, 0};
    TELL(recvmsg(ends[1], &message, 0));
    printf("name of %u bytes, flags %x\n", message.msg_namelen, message.msg_flags);
    socklen_t size = sizeof name;
    NEED(send(ends[0], "stream", 6, 0));
    TELL(recvfrom(ends[1], buffer, sizeof buffer, 0, (struct sockaddr *)&name, &size));
    printf("name of %u bytes\n", size);
    NEED(sendto(client, "datagram", 8, 0, (struct sockaddr *)&to, sizeof to));
    message = (struct msghdr){&name, 4, &in, 1, NULL, 0, 0};
    TELL(recvmsg(server, &message, 0));
    printf("name of %u bytes\n", message.msg_namelen);
    NEED(sendto(client, "datagram", 8, 0, (struct sockaddr *)&to, sizeof to));
    size = 4;
    TELL(recvfrom(server, buffer, sizeof buffer, 0, (struct sockaddr *)&name, &size));
    printf("name of %u bytes\n", size);
    TELL(sendto(client, (void *)8, 8, 0, (struct sockaddr *)&to, sizeof to));
    TELL(send(ends[0], (void *)8, 8, 0));
    NEED(send(ends[0], "x", 1, 0));
    TELL(recv(ends[1], (void *)8, 8, 0));
    TELL(recv(ends[1], buffer, 8, 0));
    TELL(sendmsg(client, (void *)8, 0));
    TELL(recvmsg(server, (void *)8, MSG_DONTWAIT));
    TELL(sendto(ends[0], "x", 1, 0, (struct sockaddr *)&to, 3));
    return 0;
}
