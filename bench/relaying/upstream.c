// A fake OpenAI upstream, much faster than what is measured: one thread, epoll, replies made beforehand.
//
//   upstream PORT FOLDER
//
// FOLDER holds plain.json, captured.json (whole replies) and plain.sse, captured.sse (streams).
// The request's body decides: "stream": true → the stream; "logprobs": true → the captured form;
// `pace=N` anywhere (in a message, so that every gateway forwards it) → N ms between a stream's events.
// Any other path is answered 200 with {"data": []}, so that health checks and model lists pass.
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct { char *data; size_t size; } bytes;
typedef struct { bytes head, *events; int count, finish; } stream;   // finish: the event that says so

typedef struct connection {
    int fd, next_event, writable_asked;
    const stream *streaming;   // NULL between streams
    long pace_us, due_us;
    char *in; size_t in_size, in_room;
    char *out; size_t out_size, out_sent, out_room;   // what the socket did not take yet
    struct connection *next;   // in the list of paced streams
} connection;

static int poller;
static bytes replies[2], other;   // [captured]
static stream streams[2];
static connection *paced;

static long now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

static bytes read_file(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) { perror(path); exit(1); }
    fseek(file, 0, SEEK_END);
    bytes b = {NULL, (size_t)ftell(file)};
    rewind(file);
    b.data = malloc(b.size + 1);
    if (fread(b.data, 1, b.size, file) != b.size) { perror(path); exit(1); }
    b.data[b.size] = 0;
    fclose(file);
    return b;
}

static bytes formatted(const char *head, bytes body, const char *tail) {
    bytes b = {malloc(strlen(head) + body.size + strlen(tail) + 1), 0};
    b.size = strlen(head) + body.size + strlen(tail);
    memcpy(b.data, head, strlen(head));
    memcpy(b.data + strlen(head), body.data, body.size);
    memcpy(b.data + strlen(head) + body.size, tail, strlen(tail) + 1);
    return b;
}

static bytes whole_reply(bytes body) {
    char head[256];
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nserver: fake\r\n"
             "content-length: %zu\r\n\r\n", body.size);
    return formatted(head, body, "");
}

static stream make_stream(bytes text) {   // cut into events at blank lines, each a chunk of its own
    stream s = {{0}, malloc(4096 * sizeof(bytes)), 0, 0};
    s.head = formatted("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nserver: fake\r\n"
                       "transfer-encoding: chunked\r\n\r\n", (bytes){"", 0}, "");
    for (char *at = text.data, *end; (end = strstr(at, "\n\n")) && s.count < 4096; at = end + 2) {
        char size[32];
        snprintf(size, sizeof size, "%zx\r\n", (size_t)(end + 2 - at));
        int is_last = !strstr(end + 2, "\n\n");
        bytes event = {at, (size_t)(end + 2 - at)};
        if (!s.finish && memmem(at, event.size, "\"finish_reason\":\"stop\"", 22)) s.finish = s.count;
        s.events[s.count++] = formatted(size, event, is_last ? "\r\n0\r\n\r\n" : "\r\n");
    }
    return s;
}

static void close_connection(connection *c) {
    for (connection **at = &paced; *at; at = &(*at)->next)
        if (*at == c) { *at = c->next; break; }
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

static int flush(connection *c) {   // -1: the peer has gone
    while (c->out_sent < c->out_size) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_size - c->out_sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        c->out_sent += (size_t)n;
    }
    int left = c->out_sent < c->out_size;
    if (!left) c->out_size = c->out_sent = 0;
    if (left != c->writable_asked) {
        struct epoll_event e = {EPOLLIN | EPOLLRDHUP | (left ? EPOLLOUT : 0), {.ptr = c}};
        epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
        c->writable_asked = left;
    }
    return 0;
}

static int put(connection *c, bytes b) {
    if (c->out_size + b.size > c->out_room) {
        c->out_room = 2 * (c->out_size + b.size);
        c->out = realloc(c->out, c->out_room);
    }
    memcpy(c->out + c->out_size, b.data, b.size);
    c->out_size += b.size;
    return 0;
}

static int is_true(const char *body, size_t size, const char *key) {
    const char *at = memmem(body, size, key, strlen(key));
    if (!at) return 0;
    at += strlen(key);
    while (*at == ' ' || *at == ':') at++;
    return !strncmp(at, "true", 4);
}

static void answer(connection *c, const char *head, size_t head_size, const char *body, size_t size) {
    if (!memmem(head, head_size, "/completions", 12)) { put(c, other); return; }
    int captured = is_true(body, size, "\"logprobs\"");
    if (!is_true(body, size, "\"stream\"")) { put(c, replies[captured]); return; }
    const stream *s = &streams[captured];
    const char *pace = memmem(body, size, "pace=", 5);
    long pace_us = pace ? 1000 * atol(pace + 5) : 0;
    put(c, s->head);
    put(c, s->events[0]);
    if (!pace_us) {
        for (int i = 1; i < s->count; i++) put(c, s->events[i]);
        return;
    }
    c->streaming = s;
    c->next_event = 1;
    c->pace_us = pace_us;
    c->due_us = now_us() + pace_us;
    c->next = paced;
    paced = c;
}

static void process(connection *c) {   // every whole request that has come
    while (!c->streaming && c->in_size) {
        c->in[c->in_size] = 0;
        char *end = memmem(c->in, c->in_size, "\r\n\r\n", 4);
        if (!end) return;
        size_t head_size = (size_t)(end - c->in) + 4, size = 0;
        *end = 0;
        char *length = strcasestr(c->in, "\r\ncontent-length:");
        int is_chunked = strcasestr(c->in, "\r\ntransfer-encoding: chunked") != NULL;
        *end = '\r';
        if (length) size = (size_t)atol(length + 17);
        if (is_chunked) {   // the bodies searched here are short: their chunk lines do no harm
            char *last = memmem(end, c->in_size - (size_t)(end - c->in), "\r\n0\r\n\r\n", 7);
            if (!last) return;
            size = (size_t)(last + 7 - (c->in + head_size));
        }
        if (c->in_size < head_size + size) return;
        answer(c, c->in, head_size, c->in + head_size, size);
        c->in_size -= head_size + size;
        memmove(c->in, c->in + head_size + size, c->in_size);
    }
}

static int take(connection *c) {   // -1: the peer has gone
    for (;;) {
        if (c->in_room < c->in_size + 65536) {
            c->in_room = 2 * c->in_room + 65536;
            c->in = realloc(c->in, c->in_room + 1);
        }
        ssize_t n = recv(c->fd, c->in + c->in_size, c->in_room - c->in_size, MSG_DONTWAIT);
        if (n == 0) return -1;
        if (n < 0) break;
        c->in_size += (size_t)n;
    }
    process(c);
    return flush(c);
}

static void send_due(void) {
    long now = now_us();
    for (connection *c = paced, *next; c; c = next) {
        next = c->next;
        if (c->due_us > now) continue;
        const stream *s = c->streaming;
        put(c, s->events[c->next_event++]);
        // The finish, and what follows it, come together, as an engine's do.
        if (c->next_event > s->finish)
            while (c->next_event < s->count) put(c, s->events[c->next_event++]);
        c->due_us += c->pace_us;
        if (c->next_event == s->count) {
            c->streaming = NULL;
            for (connection **at = &paced; *at; at = &(*at)->next)
                if (*at == c) { *at = c->next; break; }
            process(c);
        }
        flush(c);
    }
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        struct epoll_event e = {EPOLLIN | EPOLLRDHUP, {.ptr = c}};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

static int wait_ms(void) {   // until the next paced event
    if (!paced) return -1;
    long first = paced->due_us;
    for (connection *c = paced; c; c = c->next)
        if (c->due_us < first) first = c->due_us;
    long left = first - now_us();
    return left > 0 ? (int)((left + 999) / 1000) : 0;
}

int main(int count, char **arguments) {
    if (count != 3) { fprintf(stderr, "usage: upstream PORT FOLDER\n"); return 2; }
    signal(SIGPIPE, SIG_IGN);
    replies[0] = whole_reply(read_file(arguments[2], "plain.json"));
    replies[1] = whole_reply(read_file(arguments[2], "captured.json"));
    streams[0] = make_stream(read_file(arguments[2], "plain.sse"));
    streams[1] = make_stream(read_file(arguments[2], "captured.sse"));
    other = whole_reply((bytes){"{\"object\": \"list\", \"data\": []}", 30});
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[1])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (void *)&address, sizeof address)) { perror("bind"); return 1; }
    listen(listener, 4096);
    poller = epoll_create1(0);
    struct epoll_event e = {EPOLLIN, {.ptr = NULL}}, found[512];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int n = epoll_wait(poller, found, 512, wait_ms());
        for (int i = 0; i < n; i++) {
            connection *c = found[i].data.ptr;
            if (!c) { accept_all(listener); continue; }
            if (found[i].events & EPOLLOUT) flush(c);
            if (found[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR) && take(c) < 0)
                close_connection(c);
        }
        if (paced) send_due();
    }
}
