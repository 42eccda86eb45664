/* ---- products and layers -------------------------------------------------------------------------------------- */

/* A product: parts with outputs of their own, each stored in its own way. */
struct linear {
    const struct part *parts;
    int64_t num_parts, inputs, outputs;
    const float *bias; /* [outputs], or none */
    int32_t is_quantised; /* whether any of its parts is */
};

/* The rows that a product reads. Those of scales of 16 inputs are quicker one by one. */
static struct acts acts_for(const struct linear *w, float *room, long rows) {
    int in_pairs = PAIRS && rows >= PAIRED_ROWS;
    for (long i = 0; i < w->num_parts && in_pairs; i++) {
        int kind = w->parts[i].layout - FLOAT_LAYOUTS;
        in_pairs = kind < 0 || quants[kind].scale != BYTES16;
    }
    return acts_in(room, rows, w->inputs, in_pairs);
}

/* How outputs leave a product. */
struct outcome {
    float *y; /* [rows, stride] */
    const float *bias;
    long stride;
    int add; /* to what y has */
};

static inline __attribute__((always_inline)) void put_all(const struct outcome *o, const float *values, float *to,
                                                          long first, const long width) {
    if (o->bias && o->add) for (long j = 0; j < width; j++) to[j] += values[j] + o->bias[first + j];
    else if (o->bias) for (long j = 0; j < width; j++) to[j] = values[j] + o->bias[first + j];
    else if (o->add) for (long j = 0; j < width; j++) to[j] += values[j];
    else memcpy(to, values, sizeof(float) * width);
}

static inline void put(const struct outcome *o, const float *values, long row, long first, long width) {
    float *to = o->y + row * o->stride + first;
    if (width == QUANT_TILE) put_all(o, values, to, first, QUANT_TILE); /* a number that the compiler knows */
    else put_all(o, values, to, first, width);
}

static void float_share(const struct part *p, const float *x, long rows, long inputs, const struct outcome *o) {
    long from, to;
    my_share((p->outputs + BLOCK - 1) / BLOCK, &from, &to);
    for (long b = from; b < to; b++) {
        const char *block = (const char *)p->codes + b * BLOCK * inputs * item_bytes[p->layout];
        long width = p->outputs - b * BLOCK < BLOCK ? p->outputs - b * BLOCK : BLOCK;
        float out[TILE][BLOCK];
        for (long r = 0, n; r < rows; r += n) {
            n = tile_rows(rows - r);
            tiles[p->layout][n - 1](block, x + r * inputs, inputs, inputs, out);
            for (long i = 0; i < n; i++) put(o, out[i], r + i, p->first + b * BLOCK, width);
        }
    }
}

/* Rows that are taken through all tiles before the next ones: their codes should stay in the first cache. */
static long rows_at_once(long inputs) {
    long fit = (32 << 10) / inputs / QUANT_ROWS * QUANT_ROWS;
    return fit < QUANT_ROWS ? QUANT_ROWS : fit;
}

static void quant_share(const struct part *p, const struct acts *a, long rows, const struct outcome *o) {
    quant_fn *const *of = quants[p->layout - FLOAT_LAYOUTS].tiles;
    long from, to, step = rows_at_once(a->inputs);
    my_share((p->outputs + QUANT_TILE - 1) / QUANT_TILE, &from, &to);
    for (long start = 0; start < rows; start += step) {
        long end = start + step < rows ? start + step : rows;
        for (long tile = from; tile < to; tile++) {
            long first = tile * QUANT_TILE, width = p->outputs - first < QUANT_TILE ? p->outputs - first : QUANT_TILE;
            float out[QUANT_ROWS * QUANT_TILE];
            for (long r = start, n; r < end; r += n) {
                n = end - r < QUANT_ROWS ? end - r : QUANT_ROWS;
                of[n - 1](p, tile, a, r, out);
                for (long i = 0; i < n; i++) put(o, out + i * QUANT_TILE, r + i, p->first + first, width);
            }
        }
    }
}

static void linear_share(const struct linear *w, const float *x, const struct acts *a, long rows, int add, float *y) {
    struct outcome o = {y, w->bias, w->outputs, add};
    for (long i = 0; i < w->num_parts; i++) {
        const struct part *p = w->parts + i;
        if (p->layout < FLOAT_LAYOUTS) float_share(p, x, rows, w->inputs, &o);
        else quant_share(p, a, rows, &o);
    }
}

#define CHUNK 8 /* groups: what a thread takes of a row */

/* Quantises x[rows, inputs], the threads together. */
static void quantise_rows(const struct acts *a, const float *x, long rows) {
    long groups = a->inputs / GROUP, chunks = (groups + CHUNK - 1) / CHUNK;
#pragma omp for schedule(static) collapse(2) nowait
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < chunks; c++) {
            long end = (c + 1) * CHUNK < groups ? (c + 1) * CHUNK : groups;
            quantise_groups(a, r, c * CHUNK, end, x + r * a->inputs);
        }
    meet();
}

/* y[rows, outputs] = x W' (+ bias), added to y where `add` is set: here only by tests of what after_norm does. */
long slip_linear(const struct linear *w, const float *x, long rows, int add, float *y, float *room, long floats) {
    if (acts_floats(rows, w->inputs) > floats) return acts_floats(rows, w->inputs);
    struct acts a = acts_for(w, room, rows);
    struct meeting place = {0};
#pragma omp parallel num_threads(team)
    {
        meeting = &place;
        if (w->is_quantised) quantise_rows(&a, x, rows);
        linear_share(w, x, &a, rows, add, y);
    }
    return 0;
}

static float float_at(const void *w, int kind, long at) {
    if (kind == F32) return ((const float *)w)[at];
    if (kind == BF16) {
        uint32_t bits = (uint32_t)((const uint16_t *)w)[at] << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    return half_to_float(((const uint16_t *)w)[at]);
}

/* out[rows, inputs]: rows of a table of one part, by id. */
void slip_embed(const struct linear *w, const int32_t *ids, long rows, float *out) {
    const struct part *p = w->parts;
    long n = w->inputs;
    for (long r = 0; r < rows; r++) {
        if (p->layout >= FLOAT_LAYOUTS) {
            unpack_row(p, ids[r], n, out + r * n);
            continue;
        }
        long id = ids[r], base = (id / BLOCK) * BLOCK * n + id % BLOCK;
        for (long k = 0; k < n; k++) out[r * n + k] = float_at(p->codes, p->layout, base + k * BLOCK);
    }
}

/* A layer of the decoder. */
struct layer {
    struct attention attention;
    const struct linear *qkv, *output, *gate_up, *down;
    const float *attention_norm, *mlp_norm;
    float eps;
};

/* Memory for the rows in one layer. All layers use the same, one after another. */
struct room {
    float *normed, *qkv, *mixed, *gate_up, *gated, *acts, *scores;
    long floats;
};

static struct room room_of(const struct layer *l, long rows, long max_keys, float *at) {
    long width = l->qkv->inputs, heads = l->output->inputs, inner = l->down->inputs;
    long most = width > heads ? width : heads;
    most = most > inner ? most : inner;
    struct room r;
    float *start = at;
    r.normed = at, at += rows * width;
    r.qkv = at, at += rows * l->qkv->outputs;
    r.mixed = at, at += rows * heads;
    r.gate_up = at, at += rows * l->gate_up->outputs;
    r.gated = at, at += rows * inner;
    r.scores = at, at += attend_floats(max_keys);
    at += (16 - (at - start) % 16) % 16;
    r.acts = at, at += acts_floats(rows, most);
    r.floats = at - start;
    return r;
}

static long layer_floats(const struct layer *l, long rows, long max_keys) { return room_of(l, rows, max_keys, 0).floats; }

/* normed[rows, width], quantised as well where the product that reads it is. `wanted`: the rows of x; null: all in order. */
static void norm_rows(const float *x, const int32_t *wanted, const float *gain, float eps, long rows,
                      const struct linear *reader, float *normed, const struct acts *a) {
    long width = reader->inputs;
#pragma omp for schedule(static) nowait
    for (long r = 0; r < rows; r++) {
        rms_norm_row(x + (wanted ? wanted[r] : r) * width, gain, eps, width, normed + r * width);
        if (reader->is_quantised) quantise_groups(a, r, 0, width / GROUP, normed + r * width);
    }
    meet();
}

static long padded(long floats) { return (floats + 15) / 16 * 16; }
static long larger(long a, long b) { return a > b ? a : b; }

/* gated[rows, inner] = silu(gate) * up, quantised as well where `down` is. */
static void gate_rows(const float *gate_up, long rows, const struct linear *down, float *gated, const struct acts *a) {
    long inner = down->inputs, span = CHUNK * GROUP, chunks = (inner + span - 1) / span;
#pragma omp for schedule(static) collapse(2) nowait
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < chunks; c++) {
            long from = c * span, to = from + span < inner ? from + span : inner;
            const float *gate = gate_up + r * 2 * inner;
            swiglu_row(gate + from, gate + inner + from, to - from, gated + r * inner + from);
            if (down->is_quantised) quantise_groups(a, r, from / GROUP, to / GROUP, gated + r * inner);
        }
    meet();
}

/* The layer from what `qkv` reads on, which stands in room.normed and, where `qkv` is quantised, in `read`. */
static void after_norm(const struct layer *l, const struct batch *batch, const struct room *room, const struct acts *read,
                       float *x) {
    long rows = batch->rows;
    struct acts heads = acts_for(l->output, room->acts, rows);
    struct acts normed = acts_for(l->gate_up, room->acts, rows), inner = acts_for(l->down, room->acts, rows);
    linear_share(l->qkv, room->normed, read, rows, 0, room->qkv);
    meet();
#pragma omp for schedule(static) nowait
    for (long r = 0; r < rows; r++) rope_write_row(&l->attention, batch, room->qkv, r);
    meet();
    attend_share(&l->attention, batch, room->qkv, room->scores, room->mixed);
    if (l->output->is_quantised) quantise_rows(&heads, room->mixed, rows);
    linear_share(l->output, room->mixed, &heads, rows, 1, x);
    meet();
    norm_rows(x, NULL, l->mlp_norm, l->eps, rows, l->gate_up, room->normed, &normed);
    linear_share(l->gate_up, room->normed, &normed, rows, 0, room->gate_up);
    meet();
    gate_rows(room->gate_up, rows, l->down, room->gated, &inner);
    linear_share(l->down, room->gated, &inner, rows, 1, x);
    meet();
}

/* Which hidden states are kept: those before layers[k] in the k-th part of each row of out. */
struct features {
    const int64_t *layers;
    int64_t count;
    float *out; /* [rows, count * width] */
};

static void keep_features(const struct features *f, long layer, const float *x, long rows, long width) {
    for (long k = 0; f && k < f->count; k++) {
        if (f->layers[k] != layer) continue;
#pragma omp for schedule(static) nowait
        for (long r = 0; r < rows; r++)
            memcpy(f->out + (r * f->count + k) * width, x + r * width, sizeof(float) * width);
    }
}

struct decoder {
    const struct linear *embedding, *head;
    const struct layer *const *layers; /* of the same shape */
    int64_t count;
    const float *final_norm;
    float eps;
};

/* The place of the largest value, the first of equal ones; -1 where one is not a number, or the largest is not finite. */
static long highest(const float *values, long count) {
    vec tops = splat(-INFINITY);
    ivec odd = {0};
    long i = 0, best = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        vec v = load(values + i);
        odd |= v != v;
        tops = pick(v > tops, v, tops);
    }
    float top = largest_of(tops);
    int is_odd = top_of(-odd);
    for (; i < count; i++) is_odd |= values[i] != values[i], top = values[i] > top ? values[i] : top;
    if (is_odd || !(fabsf(top) < INFINITY)) return -1;
    for (const long step = 16 * WIDTH; best + step <= count; best += step) {
        ivec found = {0};
        for (long k = 0; k < step; k += WIDTH) found |= load(values + best + k) == splat(top);
        if (top_of(-found)) break;
    }
    while (values[best] != top) best++;
    return best;
}

/* logits[outputs, vocabulary] of the rows wanted, and the place of the largest of each, or -1 as `highest` says. f: or none. */
long slip_forward(const struct decoder *d, const struct rows *given, const struct features *f, float *logits,
                  int32_t *likeliest, float *room, long floats) {
    struct batch batch = batch_of(given);
    long rows = batch.rows, outputs = batch.outputs, width = d->embedding->inputs, vocabulary = d->head->outputs;
    float *x = room, *normed = x + padded(rows * width), *rest = normed + padded(outputs * width);
    long layer = layer_floats(d->layers[0], rows, batch.max_keys), needed = larger(layer, acts_floats(outputs, width));
    needed += rest - room;
    if (needed > floats) return needed;
    struct room own = room_of(d->layers[0], rows, batch.max_keys, rest);
    struct acts last = acts_for(d->head, rest, outputs);
    struct meeting place = {0};
    long long started = now_ns();
    begin_pass();
    slip_embed(d->embedding, batch.tokens, rows, x);
#pragma omp parallel num_threads(team)
    {
        meeting = &place;
        for (long i = 0; i < d->count; i++) {
            const struct layer *l = d->layers[i];
            struct acts read = acts_for(l->qkv, own.acts, rows);
            keep_features(f, i, x, rows, width);
            norm_rows(x, NULL, l->attention_norm, l->eps, rows, l->qkv, own.normed, &read);
            after_norm(l, &batch, &own, &read, x);
        }
        keep_features(f, d->count, x, rows, width);
        norm_rows(x, batch.wanted, d->final_norm, d->eps, outputs, d->head, normed, &last);
        linear_share(d->head, normed, &last, outputs, 0, logits);
        meet();
#pragma omp for schedule(static) nowait
        for (long r = 0; r < outputs; r++) likeliest[r] = (int32_t)highest(logits + r * vocabulary, vocabulary);
    }
    end_pass(&place, now_ns() - started);
    return 0;
}

/* ---- a draft head ---- */

struct head {
    const struct linear *fuse;    /* features to what the layer reads */
    const float *feature_gains;   /* of the norms of equal parts of the features, one after another; or null */
    int64_t feature_norms;        /* how many there are */
    const struct layer *layer;
    const struct linear *embedding, *logits;
    const struct linear *rough; /* the same weights with half as many bits, or null */
    const float *token_norm, *final_norm;
    const int64_t *token_ids; /* the target's id of each of its own */
    int32_t from_norm, norm_output;
};

/* A draft head's layer, in place: it reads the norm of token[rows, width] and, beside it, that of x[rows, width]. With
 * `from_norm`, the norm of x is also what the layer adds to. scratch: layer_floats */
static void head_layer(const struct head *h, const struct batch *batch, const float *token, float *x, float *scratch) {
    const struct layer *l = h->layer;
    long rows = batch->rows, both = l->qkv->inputs, width = both / 2;
    struct room room = room_of(l, rows, batch->max_keys, scratch);
    struct acts read = acts_for(l->qkv, room.acts, rows);
    struct meeting place = {0};
#pragma omp parallel num_threads(team)
    {
        meeting = &place;
#pragma omp for schedule(static) nowait
        for (long r = 0; r < rows; r++) {
            float *normed = room.normed + r * both, *own = x + r * width;
            rms_norm_row(token + r * width, h->token_norm, l->eps, width, normed);
            rms_norm_row(own, l->attention_norm, l->eps, width, normed + width);
            if (h->from_norm) memcpy(own, normed + width, sizeof(float) * width);
            if (l->qkv->is_quantised) quantise_groups(&read, r, 0, both / GROUP, normed);
        }
        meet();
        after_norm(l, batch, &room, &read, x);
    }
}

long slip_head_layer(const struct head *h, const struct rows *given, const float *token, float *x, float *room, long floats) {
    struct batch batch = batch_of(given);
    long needed = layer_floats(h->layer, batch.rows, batch.max_keys);
    if (needed > floats) return needed;
    head_layer(h, &batch, token, x, room);
    return 0;
}

/* How one row's tokens are chosen: with temperature 0 the likeliest; else by the target's noise, which has a key for each
 * step. core/noise.py says how. */
struct choice {
    double temperature;
    const uint64_t *keys; /* [steps] */
    double least;         /* a chain goes on while its tokens together are as likely as this */
    double chance;        /* of them together */
    int64_t taken;        /* how many there are */
};

#define EXACT_TILES 8 /* of a row: all of 300 drafts were those of exact products; with 4, 1 or 2 some were not */

/* Of a row's products by rough weights, those that may be the largest are replaced by exact ones, a tile at a time. */
static void refine(const struct linear *w, const struct acts *a, long row, float *y) {
    const struct part *p = w->parts;
    long best[EXACT_TILES], found = 0;
    float most[EXACT_TILES];
    for (long first = 0; first < w->outputs; first += QUANT_TILE) {
        long end = first + QUANT_TILE < w->outputs ? first + QUANT_TILE : w->outputs;
        float top = y[first];
        for (long i = first + 1; i < end; i++) top = y[i] > top ? y[i] : top;
        if (found == EXACT_TILES && !(top > most[found - 1])) continue;
        long at = found < EXACT_TILES ? found++ : found - 1;
        for (; at && top > most[at - 1]; at--) most[at] = most[at - 1], best[at] = best[at - 1];
        most[at] = top, best[at] = first;
    }
    for (long k = 0; k < found; k++) {
        float out[QUANT_TILE];
        quants[p->layout - FLOAT_LAYOUTS].tiles[0](p, best[k] / QUANT_TILE, a, row, out);
        long left = w->outputs - best[k];
        memcpy(y + best[k], out, sizeof(float) * (left < QUANT_TILE ? left : QUANT_TILE));
    }
}

/* logits[rows, outputs] of a head's outputs x. */
static void draft_logits(const struct head *h, const float *x, long rows, float *logits, float *room) {
    const struct linear *read = h->rough && rows < PAIRED_ROWS ? h->rough : h->logits;
    struct acts a = acts_for(read, room, rows);
    struct meeting place = {0};
#pragma omp parallel num_threads(team)
    {
        meeting = &place;
        if (read->is_quantised) quantise_rows(&a, x, rows);
        linear_share(read, x, &a, rows, 0, logits);
        if (read == h->rough) {
            meet();
#pragma omp for schedule(static) nowait
            for (long r = 0; r < rows; r++) refine(h->logits, &a, r, logits + r * read->outputs);
        }
    }
}

#define MOST_NOISE 22.874 /* that of the largest number, rounded up */
#define REACHED 512       /* logits at a time that are searched for those which noise can make win */

static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static uint64_t number_of(uint64_t key, int64_t token) { return mixed(key + (token + 1) * 0x9E3779B97F4A7C15u) >> 32; }
static double noise_of(uint64_t number) { return -log(-log(((double)number + 0.5) * 0x1p-32)); }

static float sum_of_exp(const float *values, long count, float top) {
    vec total = {0};
    long i = 0;
    for (; i + WIDTH <= count; i += WIDTH) total += exp_of(load(values + i) - splat(top));
    float sum = sum_of(total);
    for (; i < count; i++) sum += exp_of(splat(values[i] - top))[0];
    return sum;
}

/* Logits that are 8 below the best take noise that few numbers give: those of the others need no logarithm. And below
 * `least` no noise is enough. `ids`: the token of each logit; null: its place. */
static long drawn(const float *logits, long best, long count, const int64_t *ids, double temperature, uint64_t key,
                  double *chance) {
    double top = logits[best] / temperature, noise = noise_of(number_of(key, ids ? ids[best] : best));
    float least = nextafterf((float)(logits[best] + temperature * (noise - MOST_NOISE)), -INFINITY);
    double enough = exp(-exp(-(noise > -10.0 ? noise + 8.0 : -2.0))) * 0x1p32 - 2.0, most = -INFINITY, total = 0.0;
    long winner = best;
    for (long from = 0; from < count; from += REACHED) {
        long size = count - from < REACHED ? count - from : REACHED, found = 0, reached[REACHED];
        for (long i = from; i < from + size; i++) reached[found] = i, found += !(logits[i] < least);
        for (long k = 0; k < found; k++) {
            long i = reached[k];
            uint64_t number = number_of(key, ids ? ids[i] : i);
            double z = logits[i] / temperature;
            if (z < top - 8.0 && number < enough) continue;
            double value = z + noise_of(number);
            if (value > most) winner = i, total = total * exp(most - value) + 1.0, most = value;
            else total += exp(value - most);
        }
    }
    *chance = 1.0 / total;
    return winner;
}

/* The token that a row goes on with. A chain is over where its logits are no numbers, or where it is not likely enough to
 * go on; a token that is not its own any more is the first one. */
static int32_t chosen(const struct head *h, const float *logits, struct choice *by, long step, float *chance) {
    long count = h->logits->outputs, best = by->taken < step || by->chance < by->least ? -1 : highest(logits, count);
    if (best < 0) return 0;
    double own = 1.0;
    if (by->temperature > 0.0) best = drawn(logits, best, count, h->token_ids, by->temperature, by->keys[step], &own);
    else own = 1.0 / sum_of_exp(logits, count, logits[best]);
    by->chance *= own;
    by->taken++;
    *chance = (float)own;
    return (int32_t)h->token_ids[best];
}

/* The target's own token, with temperature 0 the likeliest, else by the noise of `key`; -1 as `highest` says. */
long slip_choose(const float *logits, long count, double temperature, uint64_t key) {
    double chance;
    long best = highest(logits, count);
    return best < 0 || temperature == 0.0 ? best : drawn(logits, best, count, NULL, temperature, key, &chance);
}

static long reading_floats(const struct head *h, long rows, long max_keys) {
    long most = larger(layer_floats(h->layer, rows, max_keys), acts_floats(rows, h->fuse->inputs));
    return padded(rows * h->fuse->inputs) + padded(rows * h->fuse->outputs) + most;
}

/* x[rows, width]: the head's outputs for the tokens of the text, each after the target's features[rows, ...] before it. */
static void read_features(const struct head *h, const struct batch *batch, const float *features, float *x, float *scratch) {
    long rows = batch->rows, inputs = h->fuse->inputs, width = h->fuse->outputs, parts = h->feature_norms;
    float *normed = scratch, *token = normed + padded(rows * inputs), *room = token + padded(rows * width);
    struct acts a = acts_for(h->fuse, room, rows);
    struct meeting place = {0};
#pragma omp parallel num_threads(team)
    {
        meeting = &place;
#pragma omp for schedule(static) nowait
        for (long r = 0; r < rows; r++) {
            const float *row = features + r * inputs;
            for (long k = 0, n = parts ? inputs / parts : 0; k < parts; k++)
                rms_norm_row(row + k * n, h->feature_gains + k * n, h->layer->eps, n, normed + r * inputs + k * n);
            if (h->fuse->is_quantised) quantise_groups(&a, r, 0, inputs / GROUP, parts ? normed + r * inputs : row);
        }
        meet();
        linear_share(h->fuse, parts ? normed : features, &a, rows, 0, x);
    }
    slip_embed(h->embedding, batch->tokens, rows, token);
    head_layer(h, batch, token, x, room);
    if (h->norm_output) slip_rms_norm(x, h->final_norm, h->layer->eps, rows, width, x);
}

long slip_read_features(const struct head *h, const struct rows *given, const float *features, float *x, float *room,
                        long floats) {
    struct batch batch = batch_of(given);
    long needed = reading_floats(h, batch.rows, batch.max_keys);
    if (needed > floats) return needed;
    read_features(h, &batch, features, x, room);
    return 0;
}

/* tokens, chances [steps, chains]: what a head drafts by itself, a chain for each row wanted. The first rows are those of
 * the text that it reads before, with the target's features of each; the rows of all steps but the first follow them, one
 * step after another. `by` says how many tokens each chain has; where none goes on, no further step is taken. */
long slip_draft_chains(const struct head *h, const struct rows *given, long steps, struct choice *by, const float *features,
                       int32_t *tokens, float *chances, float *room, long floats) {
    struct batch at = batch_of(given);
    long chains = at.outputs, reads = at.rows - (steps - 1) * chains, width = h->logits->inputs, count = h->logits->outputs;
    float *x = room, *last = x + padded(reads * width), *normed = last + padded(chains * width);
    float *token = normed + padded(chains * width), *logits = token + padded(chains * width);
    float *rest = logits + padded(chains * count);
    long step_floats = larger(layer_floats(h->layer, chains, at.max_keys), acts_floats(chains, width));
    long needed = (rest - room) + larger(reading_floats(h, reads, at.max_keys), step_floats);
    if (needed > floats) return needed;
    at.rows = reads;
    read_features(h, &at, features, x, rest);
    for (long r = 0; r < chains; r++) memcpy(last + r * width, x + at.wanted[r] * width, sizeof(float) * width);
    at.rows = chains, at.position += reads, at.cell += reads, at.sequence += reads, at.prefix += reads, at.extra_from += reads;
    for (long step = 0;; step++, at.position += chains, at.cell += chains, at.prefix += chains) {
        if (!h->norm_output) slip_rms_norm(last, h->final_norm, h->layer->eps, chains, width, normed);
        draft_logits(h, h->norm_output ? last : normed, chains, logits, rest);
        int32_t *now = tokens + step * chains;
        int goes_on = 0;
        for (long r = 0; r < chains; r++) {
            now[r] = chosen(h, logits + r * count, by + r, step, chances + step * chains + r);
            goes_on |= by[r].taken > step && by[r].chance >= by[r].least;
        }
        if (!goes_on || step + 1 == steps) return 0;
        slip_embed(h->embedding, now, chains, token);
        head_layer(h, &at, token, last, rest);
        if (h->norm_output) slip_rms_norm(last, h->final_norm, h->layer->eps, chains, width, last);
    }
}
