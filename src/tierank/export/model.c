// The template of the C source that c.py writes. "//@ NAME" begins a piece, and lines that begin with "// " are for us
// alone. A model is the head, the pieces "for" a word that its other pieces use, its tables and functions, the entry and
// the program. Words that begin with $ are replaced, and nothing else is.
//@ head
/* A ranking model, written by tierank.
 *
 *   int tierank_score(const float *features, size_t n_documents, double *scores);
 *
 * features: the candidate list of one query, document after document, $n_features numbers each; NAN where a value is
 * missing. scores: one per document, higher is better. Returns 0, or 1 where memory ran out. It keeps no state: threads
 * may call it at the same time.
 *
 * Compile with any C99 compiler: cc -std=c99 -O3 -march=native -ffp-contract=off -c FILE
 * (-march for the machine that it will run on; no -ffast-math: it forgets what NAN is).
 * With -DTIERANK_MAIN and -lm it is a program: one document per line on standard input, the numbers separated by
 * blanks, nan for a missing one, an empty line after each query; one score per line on standard output.
 *
 * Features, by their place:
$names
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define N_FEATURES $n_features
#define LANES 8
#define TOGETHER 4

int tierank_score(const float *features, size_t n_documents, double *scores);
//@ activation
static void activate_$name(double *y, int n, int width) {
  for (int j = 0; j < TOGETHER; j++)
    for (int k = 0; k < n; k++) {
      float x = (float)y[j * width + k], activated = $value;
      y[j * width + k] = activated;
    }
}
//@ for struct node
struct node { float threshold; int32_t column, next; };
//@ for add_scaled
static void add_scaled(const double *part, size_t n, double weight, double *scores) {
  for (size_t i = 0; i < n; i++) scores[i] += weight * part[i];
}
//@ for add_standardised
static void add_standardised(const double *part, size_t n, double weight, double rounding, double *scores) {
  double mean = 0, square = 0, largest = 0;
  for (size_t i = 0; i < n; i++) mean += part[i];
  for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(part[i]));
  mean /= (double)(n ? n : 1);
  for (size_t i = 0; i < n; i++) square += (part[i] - mean) * (part[i] - mean);
  double spread = sqrt(square / (double)(n ? n : 1));
  /* A deviation that rounding alone could have made is none. */
  if (!(spread > largest * rounding)) return;
  for (size_t i = 0; i < n; i++) scores[i] += weight * ((part[i] - mean) / spread);
}
//@ for drop_cancelled
/* Only rounding remains of parts that cancel. */
static void drop_cancelled(double *scores, size_t n, double cancelled) {
  for (size_t i = 0; i < n; i++) if (fabs(scores[i]) > cancelled) return;
  for (size_t i = 0; i < n; i++) scores[i] = 0;
}
//@ for apply_layer
/* A product of floats is exact in double precision: whether it is added in one step or in two, the sum is the same. */
#ifdef FP_FAST_FMA
#define ADD_PRODUCT(sum, a, b) fma(a, b, sum)
#else
#define ADD_PRODUCT(sum, a, b) ((sum) + (a) * (b))
#endif
#define ADD_FOUR(sum, x) \
  ADD_PRODUCT(ADD_PRODUCT(ADD_PRODUCT(ADD_PRODUCT(sum, a, (x)[0]), b, (x)[1]), c, (x)[2]), d, (x)[3])
/* y += W x for four inputs of four documents; compilers see by restrict that the sums do not overlap. */
static void add_inputs(const double *weights, int n_out, int width, const double *x, double *restrict y0,
                       double *restrict y1, double *restrict y2, double *restrict y3) {
  for (int k = 0; k < n_out; k++) {
    double a = weights[k], b = weights[n_out + k], c = weights[2 * n_out + k], d = weights[3 * n_out + k];
    y0[k] = ADD_FOUR(y0[k], x);
    y1[k] = ADD_FOUR(y1[k], x + width);
    y2[k] = ADD_FOUR(y2[k], x + 2 * width);
    y3[k] = ADD_FOUR(y3[k], x + 3 * width);
  }
}
/* y = W x + b; the weights of an input stand together, and documents stand width apart. */
static void apply_layer(const double *weights, const double *bias, int n_in, int n_out, int width, double *x,
                        double *y) {
  for (int j = 0; j < TOGETHER; j++) {
    memcpy(y + j * width, bias, (size_t)n_out * sizeof(double));
    for (int i = n_in; i % 4; i++) x[j * width + i] = 0;
  }
  for (int i = 0; i < n_in; i += 4)
    add_inputs(weights + i * n_out, n_out, width, x + i, y, y + width, y + 2 * width, y + 3 * width);
}
//@ for impute(
static void impute(const float *features, size_t n, float *rows) {
  for (size_t i = 0; i < n * N_FEATURES; i++) rows[i] = features[i] != features[i] ? 0 : features[i];
}
//@ for copy_features
static void copy_features(const float *features, size_t n, float *rows) {
  memcpy(rows, features, n * N_FEATURES * sizeof(float));
}
//@ for take_logs
/* ln(1 + value) for value >= 0, as tierank takes it: 1 + value = 2^e m, and ln m = 2 artanh((m - 1) / (m + 1)). It is
 * arithmetic alone, which compilers do for many numbers at once. */
static double log_above_one(double value) {
  double sum = 1 + value, m;
  uint64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  int64_t e = (int64_t)((bits - UINT64_C(0x3FE6A09E667F3BCD)) >> 52);
  bits -= (uint64_t)e << 52;
  memcpy(&m, &bits, sizeof m);
  double above_one = e == 0 ? value : m - 1, s = above_one / (above_one + 2), q = s * s;
  double series = 1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * (1.0 / 11 + q / 13))));
  return (double)e * 0.6931471805599453 + 2 * (s + s * q * series);
}
static void take_logs(const float *features, size_t n, float *rows) {
  for (size_t i = 0; i < n * N_FEATURES; i++) {
    float x = features[i], size = (float)log_above_one(fabs((double)x)), signed_size = x >= 0 ? size : -size;
    rows[i] = x == x ? signed_size : x;
  }
}
//@ for rescale(
static void rescale(float *rows, size_t n, const double *center, const double *scale, double least,
                    double most) {
  for (size_t i = 0; i < n; i++)
    for (int k = 0; k < N_FEATURES; k++) {
      float *x = rows + i * N_FEATURES + k;
      double value = (*x - center[k]) * scale[k];
      value = value > least ? value : least;
      value = value < most ? value : most;
      *x = *x == *x ? (float)value : 0;
    }
}
//@ for in_query(
/* Sorts by the upper half of the keys; other has the same room. */
static void sort_keys(uint64_t *keys, uint64_t *other, size_t n) {
  for (int shift = 32; shift < 64; shift += 8) {
    size_t places[257] = {0};
    for (size_t i = 0; i < n; i++) places[(keys[i] >> shift & 255) + 1]++;
    for (int k = 0; k < 256; k++) places[k + 1] += places[k];
    for (size_t i = 0; i < n; i++) other[places[keys[i] >> shift & 255]++] = keys[i];
    uint64_t *kept = keys;
    keys = other, other = kept;
  }
}
/* The known values of a feature as whole numbers in the same order, each with its row; returns how many. */
static size_t collect_keys(const float *column, size_t n, uint64_t *keys) {
  size_t many = 0;
  for (size_t i = 0; i < n; i++) {
    float value = column[i * N_FEATURES] + 0.0f; /* -0 and 0 are equal */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value == value) keys[many++] = (uint64_t)(bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u)) << 32 | i;
  }
  return many;
}
//@ for rank_in_query
/* The ranks of the features in the query; 0 where a value is missing or all are equal. */
static int rank_in_query(const float *features, size_t n, float *rows) {
  uint64_t *keys = malloc((2 * n + 1) * sizeof(uint64_t));
  if (keys == NULL) return 1;
  for (size_t i = 0; i < n * N_FEATURES; i++) rows[i] = 0;
  for (size_t k = 0; k < N_FEATURES; k++) {
    size_t many = collect_keys(features + k, n, keys);
    sort_keys(keys, keys + n, many);
    if (many == 0 || keys[0] >> 32 == keys[many - 1] >> 32) continue;
    double scale = 0.5 / (double)(many - 1);
    for (size_t at = 0, after; at < many; at = after) {
      for (after = at + 1; after < many && keys[after] >> 32 == keys[at] >> 32;) after++;
      for (size_t place = at; place < after; place++)
        rows[(uint32_t)keys[place] * (size_t)N_FEATURES + k] = (float)((double)(at + after - 1) * scale);
    }
  }
  free(keys);
  return 0;
}
//@ for copy_in_query
/* The features, their places in the range of the query and their ranks in it: rows of 3 N_FEATURES. */
static int copy_in_query(const float *features, size_t n, float *rows) {
  uint64_t *keys = malloc((2 * n + 1) * sizeof(uint64_t));
  if (keys == NULL) return 1;
  for (size_t i = 0; i < n; i++) {
    float *row = rows + i * 3 * N_FEATURES;
    memcpy(row, features + i * N_FEATURES, N_FEATURES * sizeof(float));
    for (int k = N_FEATURES; k < 3 * N_FEATURES; k++) row[k] = NAN;
  }
  for (size_t k = 0; k < N_FEATURES; k++) {
    const float *column = features + k;
    size_t many = collect_keys(column, n, keys);
    if (many == 0) continue;
    sort_keys(keys, keys + n, many);
    double low = column[(uint32_t)keys[0] * (size_t)N_FEATURES];
    double high = column[(uint32_t)keys[many - 1] * (size_t)N_FEATURES];
    double scale = high > low ? 1 / (high - low) : 0, rank_scale = many > 1 ? 0.5 / (double)(many - 1) : 0;
    for (size_t at = 0, after; at < many; at = after) {
      for (after = at + 1; after < many && keys[after] >> 32 == keys[at] >> 32;) after++;
      for (size_t place = at; place < after; place++) {
        size_t i = (uint32_t)keys[place];
        rows[(3 * i + 1) * N_FEATURES + k] = (float)((column[i * N_FEATURES] - low) * scale);
        rows[(3 * i + 2) * N_FEATURES + k] = (float)((double)(at + after - 1) * rank_scale);
      }
    }
  }
  free(keys);
  return 0;
}
//@ for find_spans
/* Lowest value and 1 / span of each feature, or mean and 1 / deviation; a factor of 0 where all are equal. */
static void find_spans(const float *rows, size_t n, int standard, double *center, double *scale) {
  for (int k = 0; k < N_FEATURES; k++) {
    double low = INFINITY, high = -INFINITY, many = 0, mean = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
      double x = rows[i * N_FEATURES + k];
      if (x < low) low = x;
      if (x > high) high = x;
    }
    center[k] = high >= low ? low : 0;
    scale[k] = high > low ? 1 / (high - low) : 0;
    if (!standard || !(high > low)) continue;
    for (size_t i = 0; i < n; i++) {
      double x = rows[i * N_FEATURES + k], z = (x - center[k]) * scale[k];
      if (x == x) many += 1, mean += z, square += z * z;
    }
    mean /= many;
    double variance = square / many - mean * mean, least = 0.5 / many;
    center[k] += mean / scale[k];
    scale[k] /= sqrt(variance > least ? variance : least);
  }
}
//@ for within(
static double within(double x, double limit) { return x > limit ? limit : x < -limit ? -limit : x; }
//@ for encode_pieces
/* How far each scaled feature has come from one edge to the next, piece by piece; 0 where the feature is missing. */
static void encode_pieces(const float *features, const float *scaled, size_t n, const double (*low)[N_FEATURES],
                          const double (*slope)[N_FEATURES], int n_pieces, float *rows) {
  for (size_t i = 0; i < n; i++)
    for (int t = 0; t < n_pieces; t++)
      for (int k = 0; k < N_FEATURES; k++) {
        double value = (scaled[i * N_FEATURES + k] - low[t][k]) * slope[t][k];
        value = value > 0 ? value : 0;
        value = value < 1 ? value : 1;
        float x = features[i * N_FEATURES + k];
        *rows++ = x == x ? (float)value : 0;
      }
}
//@ for interpolate(
static void interpolate(const float *features, size_t n, const float (*knots)[256],
                        const float (*levels)[256], const double (*slopes)[256], float *rows) {
  for (size_t i = 0; i < n * N_FEATURES; i++) {
    int k = (int)(i % N_FEATURES), place = 0;
    for (int step = 128; step; step >>= 1)
      if (knots[k][place + step] <= features[i]) place += step;
    double beyond = (double)features[i] - knots[k][place];
    rows[i] = features[i] == features[i] ? (float)(levels[k][place] + (beyond > 0 ? beyond : 0) * slopes[k][place]) : 0;
  }
}
//@ transform
static int $name(const float *features, size_t n, float *rows) {
$statements  return 0;
}
//@ rescale in query
  double *center = malloc(2 * N_FEATURES * sizeof(double));
  if (center == NULL) return 1;
$take  find_spans($out, n, $standard, center, center + N_FEATURES);
  rescale($out, n, center, center + N_FEATURES, $limits);
  free(center);
//@ encode
  float *scaled = malloc((n * N_FEATURES + 1) * sizeof(float));
  if (scaled == NULL) return 1;
$scaled  encode_pieces(features, scaled, n, $low, $slope, $n, rows);
  free(scaled);
//@ function
// Returns 0, or 1 where memory ran out. made: blocks of rows that are made of the features, once for each list.
static int $name(const float *features, const float *made, size_t n, double *scores) {
  (void)features, (void)made;
$body}
//@ trees
// Rooms that grow with the model are on the heap: threads may have stacks of 128 KB.
  const float *rows = $rows;
  float(*x)[LANES] = malloc(($n_columns + 1) * sizeof *x);
  if (x == NULL) return 1;
  for (size_t first = 0; first < n; first += LANES) {
    size_t many = n - first < LANES ? n - first : LANES;
    for (size_t lane = 0; lane < LANES; lane++) {
      const float *row = rows + (first + (lane < many ? lane : 0)) * $width;
      for (int k = 0; k < $n_columns; k++) {
        float value = row[$features[k]];
        x[k][lane] = value != value || ($zeros[k] && fabsf(value) <= 1e-35f) ? $fills[k] : value;
      }
$find_members    }
    double sums[LANES] = {0};
    for (int tree = 0; tree < $n_trees; tree++) {
      int32_t at[LANES];
      for (int lane = 0; lane < LANES; lane++) at[lane] = $roots[tree];
      for (int level = $depths[tree]; level > 0; level--)
        for (int lane = 0; lane < LANES; lane++) {
          const struct node *node = $nodes + at[lane];
          at[lane] = node->next + !(x[node->column][lane] <= node->threshold);
        }
      for (int lane = 0; lane < LANES; lane++) sums[lane] += $values[at[lane]];
    }
    for (size_t lane = 0; lane < many; lane++) scores[first + lane] = sums[lane];
  }
  free(x);
  return 0;
//@ find members
      for (int k = 0; k < $n_sets; k++) {
        float value = row[$features[k]];
        int is_known = value > -1.0f && value < (float)$sizes[k];
        x[$columns[k]][lane] = is_known && $members[$starts[k] + (int)value] ? 0.0f : 1.0f;
      }
//@ combined
// calloc, because compilers do not see that a part is written before it is read.
  double *part = calloc(n ? n : 1, sizeof(double));
  int failed = part == NULL;
  for (size_t i = 0; i < n; i++) scores[i] = 0;
$calls  free(part);
  return failed;
//@ network
  double *room = malloc(2 * TOGETHER * $width * sizeof(double));
  if (room == NULL) return 1;
  double *x = room, *y = room + TOGETHER * $width, *kept;
  for (size_t first = 0; first < n; first += TOGETHER) {
    size_t many = n - first < TOGETHER ? n - first : TOGETHER;
$inputs$layers    for (size_t j = 0; j < many; j++) scores[first + j] = x[j * $width];
  }
  free(room);
  return 0;
//@ inputs
    for (size_t j = 0; j < TOGETHER; j++) {
      const float *row = $rows + (first + (j < many ? j : 0)) * $columns;
      for (size_t k = 0; k < $n_seen; k++) x[j * $width + $first + k] = $value;
    }
//@ look up
    for (size_t j = 0; j < TOGETHER; j++) {
      float value = features[(first + (j < many ? j : 0)) * N_FEATURES + $feature];
      size_t level = value > -1.0f && value < $n_levels.0f ? (size_t)(int)value : $n_levels;
      memcpy(x + j * $width + $first, $table + level * $size, $size * sizeof *x);
    }
//@ entry
int tierank_score(const float *features, size_t n, double *scores) {
  float *made = malloc((n * $width + 1) * sizeof(float));
  int failed = made == NULL;
$calls  failed = failed || $scorer(features, made, n, scores);
  free(made);
  return failed;
}
//@ program
#ifdef TIERANK_MAIN
#include <ctype.h>
#include <stdio.h>

static int finish(const float *features, size_t n) {
  double *scores = malloc((n ? n : 1) * sizeof(double));
  int failed = scores == NULL || tierank_score(features, n, scores);
  for (size_t i = 0; !failed && i < n; i++) printf("%.17g\n", scores[i]);
  free(scores);
  return failed;
}

int main(void) {
  float *features = NULL;
  size_t n = 0, room = 0, k = 0;
  for (int c = getchar(), blank = 1;; c = getchar()) {
    if (c == '\n' || c == EOF) {
      int over = (int)(k % N_FEATURES);
      if (over) return fprintf(stderr, "expected %d numbers in a line, got %d\n", N_FEATURES, over), 2;
      if ((blank || c == EOF) && n && finish(features, n)) return 1;
      if (blank) n = k = 0;
      if (c == EOF) break;
      blank = 1;
    } else if (!isspace(c)) {
      ungetc(c, stdin);
      if (k == room * N_FEATURES) {
        room = room ? 2 * room : 64;
        features = realloc(features, room * N_FEATURES * sizeof(float));
        if (features == NULL) return 1;
      }
      if (scanf("%f", features + k) != 1) return fprintf(stderr, "expected a number\n"), 2;
      k++, n = (k + N_FEATURES - 1) / N_FEATURES, blank = 0;
    }
  }
  free(features);
  return 0;
}
#endif
