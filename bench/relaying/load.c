// A closed-loop HTTP/1.1 load generator: one thread, epoll, kept connections; ends with one line of JSON.
//
//   load PORT BODY CONCURRENCY REQUESTS EVENTS SPREAD
//
// Connections begin spread over SPREAD ms: streams of equal length would otherwise all begin at once, for ever.
// POSTs BODY (a file) to /v1/chat/completions; ############ in it becomes another number each time, or every
// turn would be a repetition of the first. EVENTS: 0 for a whole reply, else how many `data:` lines
// every reply has to have. A reply that is shorter, or no 200, is an error. Times are milliseconds.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 16384 };
typedef enum { CONNECTING, IDLE, HEADING, SIZED, CHUNK_SIZE, CHUNK, CHUNK_END, UNTIL_CLOSE } state;
typedef struct {
    int fd, status, events, matched, closes, is_last_chunk, reused;
    state state;
    char head[HEAD], line[32];
    size_t head_size, line_size;
    long left;
    double sent_at, first_at;
} connection;

static int poller, port, events_wanted;
static char *request, *number;   // number: where its 12 digits stand, or NULL
static size_t request_size;
static long wanted, started, finished, errors, next_number;
static double *first_ms, *last_ms;
static char first_error[400];

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void connect_again(connection *c) {
    if (c->fd > 0) close(c->fd);
    memset(c, 0, sizeof *c);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(c->fd, (void *)&a, sizeof a) && errno != EINPROGRESS) { perror("connect"); exit(1); }
    struct epoll_event e = {EPOLLOUT, {.ptr = c}};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
}

static void send_request(connection *c) {   // a request is short: an empty socket takes it whole
    c->state = HEADING;
    c->head_size = c->line_size = 0;
    c->status = c->events = c->matched = c->is_last_chunk = 0;
    c->first_at = 0;
    if (number) {
        char digits[16];
        snprintf(digits, sizeof digits, "%012ld", next_number++ % 1000000000000L);
        memcpy(number, digits, 12);
    }
    c->sent_at = now_ms();
    if (send(c->fd, request, request_size, MSG_NOSIGNAL) != (ssize_t)request_size) connect_again(c);
}

static void next_request(connection *c) {
    if (started >= wanted) { c->state = IDLE; return; }
    started++;
    if (c->closes) connect_again(c);
    else { c->reused = 1; send_request(c); }
}

static void finish(connection *c) {
    double now = now_ms();
    int is_right = c->status == 200 && c->events >= events_wanted;
    if (!is_right && !errors++)
        snprintf(first_error, sizeof first_error, "status %d, %d events: %.200s", c->status, c->events, c->head);
    first_ms[finished] = (c->first_at ? c->first_at : now) - c->sent_at;
    last_ms[finished++] = now - c->sent_at;
    next_request(c);
}

static void count_events(connection *c, const char *data, long size, double now) {
    static const char mark[] = "data:";
    for (long i = 0; i < size; i++) {
        if (data[i] != mark[c->matched]) c->matched = data[i] == 'd';
        else if (++c->matched == 5) { c->events++; c->matched = 0; }
    }
    if (!c->first_at && (c->events || !events_wanted)) c->first_at = now;
}

static const char *take_head(connection *c, const char *at, const char *end) {
    size_t before = c->head_size, room = HEAD - 1 - before, n = (size_t)(end - at);
    n = n < room ? n : room;
    memcpy(c->head + before, at, n);
    c->head_size += n;
    c->head[c->head_size] = 0;
    char *stop = strstr(c->head, "\r\n\r\n");
    if (!stop) return at + n;
    stop[2] = 0;
    c->status = atoi(c->head + 9);
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    c->closes = strcasestr(c->head, "\r\nconnection: close") != NULL;
    if (strcasestr(c->head, "\r\ntransfer-encoding: chunked")) c->state = CHUNK_SIZE;
    else if (length) { c->state = SIZED; c->left = atol(length + 17); }
    else c->state = UNTIL_CLOSE;
    return at + ((size_t)(stop + 4 - c->head) - before);
}

static int feed(connection *c, const char *at, const char *end, double now) {   // 1: the reply is whole
    while (at < end) {
        long n = end - at;
        switch (c->state) {
        case HEADING:
            at = take_head(c, at, end);
            if (c->state == SIZED && !c->left) return 1;
            break;
        case SIZED: case CHUNK:
            n = n < c->left ? n : c->left;
            count_events(c, at, n, now);
            at += n;
            c->left -= n;
            if (!c->left && c->state == SIZED) return 1;
            if (!c->left) c->state = CHUNK_END;
            break;
        case CHUNK_SIZE:
            if (*at != '\n') { if (c->line_size < sizeof c->line - 1) c->line[c->line_size++] = *at; at++; break; }
            c->line[c->line_size] = 0;
            c->line_size = 0;
            c->left = strtol(c->line, NULL, 16);
            c->is_last_chunk = !c->left;
            c->state = c->left ? CHUNK : CHUNK_END;
            at++;
            break;
        case CHUNK_END:
            if (*at++ == '\n') { if (c->is_last_chunk) return 1; c->state = CHUNK_SIZE; }
            break;
        default:
            count_events(c, at, n, now);
            at = end;
        }
    }
    return 0;
}

static void readable(connection *c) {
    static char buffer[262144];
    ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n > 0) { if (feed(c, buffer, buffer + n, now_ms())) finish(c); return; }
    if (c->state == IDLE) { close(c->fd); return; }
    if (c->state == UNTIL_CLOSE) { c->closes = 1; finish(c); return; }
    if (c->state == HEADING && !c->head_size && c->reused) { connect_again(c); return; }   // an idle close
    c->closes = 1;
    finish(c);   // cut: too few events, or no status
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *sorted, double q) { return finished ? sorted[(long)(q * (double)(finished - 1))] : -1; }

static void make_request(const char *file) {
    FILE *f = fopen(file, "rb");
    if (!f) { perror(file); exit(1); }
    static char body[1 << 20];
    size_t size = fread(body, 1, sizeof body, f);
    request = malloc(size + 512);
    int head = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: bench\r\n"
                       "accept: */*\r\nauthorization: Bearer sk-bench\r\ncontent-type: application/json\r\n"
                       "content-length: %zu\r\n\r\n", port, size);
    memcpy(request + head, body, size);
    request_size = (size_t)head + size;
    number = memmem(request, request_size, "############", 12);
    next_number = (long)time(NULL) % 1000000 * 1000000;
}

int main(int count, char **a) {
    if (count != 7) {
        fprintf(stderr, "usage: load PORT BODY CONCURRENCY REQUESTS EVENTS SPREAD\n");
        return 2;
    }
    port = atoi(a[1]);
    make_request(a[2]);
    long concurrency = atol(a[3]);
    wanted = atol(a[4]);
    events_wanted = atoi(a[5]);
    concurrency = concurrency < wanted ? concurrency : wanted;
    first_ms = calloc((size_t)wanted, sizeof(double));
    last_ms = calloc((size_t)wanted, sizeof(double));
    poller = epoll_create1(0);
    connection *all = calloc((size_t)concurrency, sizeof(connection));
    double begun = now_ms(), heard_at = begun, apart = atof(a[6]) / (double)concurrency;
    long connected = 0;
    struct epoll_event found[512];
    while (finished < wanted) {
        for (; connected < concurrency && started < wanted && now_ms() >= begun + (double)connected * apart; started++)
            connect_again(&all[connected++]);
        int n = epoll_wait(poller, found, 512, connected < concurrency ? 1 : 60000);
        heard_at = n ? now_ms() : heard_at;
        if (now_ms() - heard_at > 59000) { fprintf(stderr, "nothing came for a minute\n"); return 1; }
        for (int i = 0; i < n; i++) {
            connection *c = found[i].data.ptr;
            if (c->state == CONNECTING && found[i].events & (EPOLLERR | EPOLLHUP)) {
                fprintf(stderr, "the connection was refused\n");
                return 1;
            }
            if (c->state == CONNECTING) {
                struct epoll_event e = {EPOLLIN | EPOLLRDHUP, {.ptr = c}};
                epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
                send_request(c);
            } else readable(c);
        }
    }
    double seconds = (now_ms() - begun) / 1e3;
    qsort(first_ms, (size_t)finished, sizeof(double), ascending);
    qsort(last_ms, (size_t)finished, sizeof(double), ascending);
    for (char *p = first_error; *p; p++) if (*p < 32 || *p == '"' || *p == '\\') *p = ' ';
    printf("{\"requests\": %ld, \"errors\": %ld, \"per_second\": %.1f, \"first_p50\": %.3f, \"first_p99\": %.3f, "
           "\"last_p50\": %.3f, \"last_p99\": %.3f, \"first_error\": \"%s\"}\n", finished, errors,
           finished / seconds, quantile(first_ms, .5), quantile(first_ms, .99), quantile(last_ms, .5),
           quantile(last_ms, .99), first_error);
    return 0;
}
