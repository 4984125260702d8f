// The backward kernel. It recomputes P from q, k and the forward's row statistics, in two roles that share
// their code, because each output then has one owner and needs neither atomics nor a second kernel:
//
//   role       own rows     streamed rows   per 16 x kChunk tile                          sums
//   queries    Q, dO        K, V            S  = own0 streamed0^T   dP  = own1 streamed1^T   dQ += dS K
//   keys       K, V         Q, dO           S^T, dP^T, the same products                  dK += dS^T Q, dV += P^T dO
//
// Two of seven products are done twice; in return nothing crosses warps, and lines of any length run alike.
//
//   block   kWarps warps = kWarps / W teams; a team of W warps owns one unit's row tile of 16 W rows in one
//           role (task = role, tile, channel part). A line that fits one tile is staged once for all its tasks.
//   warp    16 own rows: S and dP [16 x kChunk], results [16 x kOut] in accumulators
//   thread  rows g and g + 8 of the warp (g = lane / 4), columns 2t, 2t + 1 of each 8 (t = lane % 4)
//   shared  a team: own0, own1 [16 W rows], streamed0, streamed1 [kStream W rows], and for its queries
//           row_max, 1 / row_sum and delta = rowsum(dO o O); with d_bias also dS [16 W][kChunk + 1]
#pragma once

#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/shapes.cuh"

namespace axial::kernels::cuda {

// A team's shared memory.
template <class E, int kDim>
struct BackwardTiles {
  using Shape = BackwardShape<E, kDim>;
  using Value = typename E::Value;
  using Acc = typename E::Acc;
  static constexpr int kOwn = Shape::kWarps * kRows * kRowStride<E, kDim>;
  static constexpr int kStreamed = Shape::kWarps * Shape::kStream * kRowStride<E, kDim>;
  Value *own0, *streamed0;
  Acc* statistics;  // of the queries in shared memory
  Acc* ds;

  __device__ __forceinline__ BackwardTiles(unsigned char* shared, const Team& team) {
    Value* values = reinterpret_cast<Value*>(shared);
    own0 = values + team.slot * team.rows() * kRowStride<E, kDim>;
    streamed0 = values + 2 * kOwn + team.slot * team.warps * Shape::kStream * kRowStride<E, kDim>;
    Acc* numbers = reinterpret_cast<Acc*>(values + 2 * kOwn + 2 * kStreamed);
    statistics = numbers + team.slot * team.rows();
    ds = numbers + 3 * Shape::kWarps * kRows + team.slot * team.rows() * (Shape::kChunk + 1);
  }
  __device__ __forceinline__ Value* own(int i) const { return own0 + i * kOwn; }
  __device__ __forceinline__ Value* streamed(int i) const { return streamed0 + i * kStreamed; }
  __device__ __forceinline__ Acc& row_max(int row) const { return statistics[row]; }
  __device__ __forceinline__ Acc& inverse_sum(int row) const { return statistics[Shape::kWarps * kRows + row]; }
  __device__ __forceinline__ Acc& delta(int row) const { return statistics[2 * Shape::kWarps * kRows + row]; }
};

// Fills row_max, inverse_sum and delta for the queries of a tile whose dO lies in d_o_tile. Rows past the end
// get row_max = +infinity, that is P = 0. 32 / kRowsAWarp neighbouring threads share a row.
template <class E, int kDim, int kRowsAWarp>
struct QueryStatistics {
  using Value = typename E::Value;
  using Acc = typename E::Acc;
  static constexpr int kShare = 32 / kRowsAWarp, kVectors = kDim / kVector<E> / kShare;
  // 16-byte loads of O in flight with the copies of dO; few where the accumulators leave few registers.
  static constexpr int kFlight = kDim >= 128 ? 1 : 4, kEarly = kVectors < kFlight ? kVectors : kFlight;
  union Vector {
    uint4 bits;
    Value x[kVector<E>];
    __device__ Vector() {}
  };
  Vector early[kEarly];
  Acc row_max, row_sum;

  // Before the wait for dO.
  __device__ __forceinline__ void load(const BackwardProblem& p, const Unit& unit, const Value* o, bool with_delta,
                                       int first, const Team& team) {
    const int thread = late(team.thread), query = first + thread / kShare, part = thread % kShare;
    const bool inside = query < p.length;
    row_max = inside ? static_cast<const Acc*>(p.row_max)[unit.index * p.length + query] : Acc{INFINITY};
    row_sum = inside ? static_cast<const Acc*>(p.row_sum)[unit.index * p.length + query] : Acc{INFINITY};
    const bool wanted = inside && with_delta && p.o.vector;
#pragma unroll
    for (int i = 0; i < kEarly; ++i) early[i].bits = vector(p, o, query, part + i * kShare, wanted);
  }

  // With dO in shared memory. Another barrier is due before the statistics are read.
  __device__ __forceinline__ void store(const BackwardProblem& p, const Value* o, const Value* d_o_tile,
                                        bool with_delta, int first, const BackwardTiles<E, kDim>& tiles,
                                        const Team& team) {
    const int thread = late(team.thread), row = thread / kShare, part = thread % kShare, query = first + row;
    const Value* d_o = d_o_tile + row * kRowStride<E, kDim>;
    const bool inside = query < p.length;
    Acc sum = 0;
    if (with_delta && p.o.vector) {
#pragma unroll
      for (int i = 0; i < kEarly; ++i) add(sum, early[i], d_o, part + i * kShare);
#pragma unroll kFlight
      for (int i = kEarly; i < kVectors; ++i) {
        Vector late;
        late.bits = vector(p, o, query, part + i * kShare, inside);
        add(sum, late, d_o, part + i * kShare);
      }
    } else if (with_delta && inside) {
      // The channels of the vectors above, in their order: the sum does not depend on O's strides.
      for (int first_channel = part * kVector<E>; first_channel < p.dim; first_channel += kShare * kVector<E>) {
        const int end = min(first_channel + kVector<E>, p.dim);
#pragma unroll kFlight
        for (int channel = first_channel; channel < end; ++channel) {
          sum += E::to_acc(o[query * p.o.token + channel * p.o.channel]) * E::to_acc(d_o[channel]);
        }
      }
    }
#pragma unroll
    for (int step = 1; step < kShare; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (part == 0) {
      tiles.row_max(row) = row_max;
      tiles.inverse_sum(row) = Acc{1} / row_sum;
      tiles.delta(row) = sum;
    }
  }

 private:
  static __device__ __forceinline__ uint4 vector(const BackwardProblem& p, const Value* o, int query, int index,
                                                 bool inside) {
    const int channel = index * kVector<E>;
    if (!inside || channel >= p.dim) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(o + query * p.o.token + channel);
  }
  static __device__ __forceinline__ void add(Acc& sum, const Vector& o, const Value* d_o, int index) {
    Vector other;
    other.bits = *reinterpret_cast<const uint4*>(d_o + index * kVector<E>);
#pragma unroll
    for (int i = 0; i < kVector<E>; ++i) sum += E::to_acc(o.x[i]) * E::to_acc(other.x[i]);
  }
};

// Adds the sums of the team's dS [16 W x kChunk] along its diagonals to the slab; a thread owns a diagonal.
// query0, key0: the tile's corner.
template <class Acc, int kChunk>
__device__ __forceinline__ void add_diagonals(const Acc* ds, Acc* slab, int query0, int key0, int length,
                                              const Team& team) {
  const int rows = team.rows();
  for (int diagonal = team.thread; diagonal < rows + kChunk - 1; diagonal += team.threads()) {
    const int shift = diagonal - (kChunk - 1);  // row - column
    Acc sum = 0;
    for (int column = max(0, -shift); column < min(kChunk, rows - shift); ++column) {
      sum += ds[(column + shift) * (kChunk + 1) + column];
    }
    const std::int64_t index = std::int64_t{query0} - key0 + shift + length - 1;
    if (index >= 0 && index < 2 * std::int64_t{length} - 1) slab[index] += sum;
  }
}

// The dropout bits of a tile, by row (queries' role) or column (keys') of the thread's accumulators.
template <bool kKeys, int kTiles>
struct KeepBits {
  std::uint32_t bits[kKeys ? kTiles * 2 : 2] = {};

  __device__ __forceinline__ void draw(const Mask& mask, int own0, int streamed0) {
    if constexpr (kKeys) {
      keep_for_keys<kTiles * 8>(mask, streamed0, own0 / 16, bits);
    } else {
      std::uint32_t rows[2][1];
      keep_for_queries(mask, own0 + (late(lane_id()) >> 2), streamed0 / 16, rows);
      bits[0] = rows[0][0], bits[1] = rows[1][0];
    }
  }
};

// From S and the raw dP (both overwritten) to what the products need: s = P with dropout's zeros (scaled by
// row_sum in the queries' role), dp = dS (scaled alike). own0 and streamed0 are the tile's corner on the line;
// `column` is the tile's first streamed row in shared memory.
template <class E, int kDim, bool kKeys, int kTiles>
__device__ __forceinline__ void probabilities(const BackwardProblem& p, typename E::Acc (&s)[kTiles][4],
                                              typename E::Acc (&dp)[kTiles][4], const BackwardTiles<E, kDim>& tiles,
                                              bool dropout, const KeepBits<kKeys, kTiles>& keep,
                                              const typename E::Acc* bias, int own_row, int column, int own0,
                                              int streamed0) {
  using Acc = typename E::Acc;
  const int lane = late(lane_id()), g = lane >> 2, t = lane & 3;
  const Acc scale = pick(p.logit_scale, Acc{}), keep_scale = pick(p.dropout.scale, Acc{});
  const int last = streamed0 + kTiles * 8 - 1;
  // Queries past the end have P = 0 already, by their row_max.
  const bool plain = bias == nullptr && (kKeys ? !p.causal || own0 + kRows - 1 <= streamed0
                                               : last < p.length && (!p.causal || last <= own0));
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int own = own0 + g + (i >> 1) * 8, col = n * 8 + t * 2 + (i & 1), streamed = streamed0 + col;
      const int row = kKeys ? column + col : own_row + g + (i >> 1) * 8;  // of the statistics
      const int query = kKeys ? streamed : own, key = kKeys ? own : streamed;
      bool visible = true;
      Acc offset = 0;
      if (!plain) {
        visible = key < p.length && (!p.causal || key <= query);
        if (bias != nullptr && visible && query < p.length) {
          offset = bias[query - key + p.length - 1] * static_cast<Acc>(kLog2E);
        }
      }
      Acc probability = power_of_two(subtract(multiply_add(s[n][i], scale, offset), tiles.row_max(row)));
      if (kKeys) probability *= tiles.inverse_sum(row);
      if (!visible) probability = 0;
      s[n][i] = probability;
      Acc gradient = dp[n][i];
      if (dropout) {
        // Bit of the key within its block of 16; chunks of 8 start at its middle every other time.
        const int bit = kKeys ? g + (i >> 1) * 8 : (streamed0 & 8) + col;
        const bool kept = keep.bits[kKeys ? n * 2 + (i & 1) : i >> 1] >> bit & 1;
        gradient = kept ? gradient * keep_scale : Acc{0};
        if (!kept) s[n][i] = 0;
      }
      dp[n][i] = probability * (gradient - tiles.delta(row));
    }
  }
}

// Copies the two tensors of one kind, (Q, dO) or (K, V), from token `first` on.
template <class E, int kDim, int kRowsAWarp>
__device__ __forceinline__ void stage_pair(const BackwardProblem& p, int input, typename E::Value* tile,
                                           int tile_step, const Unit& unit, int first, const Team& team) {
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const Tensor& tensor = p.input[input + i];
    stage<E, kDim, kRowsAWarp>(tile + i * tile_step, slice<const typename E::Value>(tensor, unit), tensor, first,
                               p.length, p.dim, team);
  }
}

// One task of a team: the gradients of own rows first .. first + 16 W - 1 in one role, channels channel0 ..
// channel0 + kOut - 1. Own rows are on their way into shared memory. `load`: streamed rows are to be loaded;
// if not, they and the statistics are there already, the whole line in one tile.
template <class E, int kDim, bool kKeys>
__device__ __forceinline__ void backward_task(const BackwardProblem& p, const BackwardTiles<E, kDim>& tiles,
                                              const Unit& unit, const Mask& mask, const typename E::Acc* bias,
                                              typename E::Acc* slab, int first, int channel0, bool load,
                                              bool with_delta, const Team& team) {
  using Shape = BackwardShape<E, kDim>;
  using Value = typename E::Value;
  using Acc = typename E::Acc;
  constexpr int kLd = kRowStride<E, kDim>, kChunk = Shape::kChunk, kTiles = kChunk / 8, kStream = Shape::kStream;
  const Tensor& result_tensor = kKeys ? p.dk : p.dq;
  const bool want_result = result_tensor.data != nullptr;
  const bool want_ds = with_delta && (want_result || slab != nullptr);
  const int own_row = team.warp * kRows, own0 = first + own_row;

  Acc result[Shape::kOut / 8][4] = {};                // dQ or dK
  Acc result_v[kKeys ? Shape::kOut / 8 : 1][4] = {};  // dV
  const int rows_a_tile = kStream * team.warps;
  const int begin = kKeys && p.causal ? first : 0;
  const int end = !kKeys && p.causal ? min(p.length, first + team.rows()) : p.length;
#pragma unroll 1
  for (int tile0 = begin; tile0 < end; tile0 += rows_a_tile) {
    if (load) {
      if (tile0 > begin) team.sync();
      stage_pair<E, kDim, kStream>(p, kKeys ? kQ : kK, tiles.streamed0, tiles.kStreamed, unit, tile0, team);
      if constexpr (kKeys) {
        const Value* const o = slice<const Value>(p.o, unit);
        QueryStatistics<E, kDim, kStream> statistics;
        statistics.load(p, unit, o, with_delta, tile0, team);
        wait_for_copies();
        team.sync();
        statistics.store(p, o, tiles.streamed(1), with_delta, tile0, tiles, team);
      }
      wait_for_copies();
      team.sync();
    }
    RowOperand<E, kDim, Shape::kHold> rows0, rows1;
    rows0.load(tiles.own(0) + own_row * kLd);
    rows1.load(tiles.own(1) + own_row * kLd);
    const int columns = min(rows_a_tile, end - tile0);
#pragma unroll 1
    for (int column = 0; column < columns; column += kChunk) {
      const int streamed0 = tile0 + column;
      // Nothing visible, or no such row. With d_bias the team's barriers below want every warp.
      const bool hidden = p.causal && (kKeys ? streamed0 + kChunk - 1 < own0 : streamed0 > own0 + kRows - 1);
      if (slab == nullptr && (hidden || own0 >= p.length)) continue;
      KeepBits<kKeys, kTiles> keep;
      if (mask.on()) keep.draw(mask, own0, streamed0);  // before the products: it wants registers of its own
      Acc s[kTiles][4] = {}, dp[kTiles][4] = {};
      multiply_rows<E, kDim, Shape::kHold, kTiles>(s, rows0, tiles.streamed(0) + column * kLd);
      if (want_ds) multiply_rows<E, kDim, Shape::kHold, kTiles>(dp, rows1, tiles.streamed(1) + column * kLd);
      probabilities<E, kDim, kKeys>(p, s, dp, tiles, mask.on(), keep, bias, own_row, column, own0, streamed0);
      if constexpr (kKeys) {
        if (p.dv.data != nullptr) {
          multiply_cols<E, kDim, Shape::kOut, kTiles>(result_v, s, tiles.streamed(1) + column * kLd + channel0);
        }
      }
      if (want_result && want_ds) {
        multiply_cols<E, kDim, Shape::kOut, kTiles>(result, dp, tiles.streamed(0) + column * kLd + channel0);
      }
      if constexpr (!kKeys) {
        if (slab == nullptr) continue;
        const int lane = late(lane_id()), g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = own_row + g + (i >> 1) * 8;
            tiles.ds[row * (kChunk + 1) + n * 8 + t * 2 + (i & 1)] = dp[n][i] * tiles.inverse_sum(row);
          }
        }
        team.sync();
        add_diagonals<Acc, kChunk>(tiles.ds, slab, first, streamed0, p.length, team);
        team.sync();
      }
    }
  }

  if (own0 >= p.length) return;
  const Unit late = unit.late();
  Acc factor[2] = {pick(p.scale, Acc{}), pick(p.scale, Acc{})};
  if constexpr (!kKeys) {
    factor[0] *= tiles.inverse_sum(own_row + (lane_id() >> 2));
    factor[1] *= tiles.inverse_sum(own_row + (lane_id() >> 2) + 8);
  }
  if (want_result) {
    store_rows<E>(result, factor, slice<Value>(result_tensor, late), result_tensor, own0, channel0, p.length, p.dim);
  }
  if constexpr (kKeys) {
    const Acc keep_scale[2] = {pick(p.dropout.scale, Acc{}), pick(p.dropout.scale, Acc{})};
    if (p.dv.data != nullptr) {
      store_rows<E>(result_v, keep_scale, slice<Value>(p.dv, late), p.dv, own0, channel0, p.length, p.dim);
    }
  }
}

template <class E, int kDim>
__global__ void __launch_bounds__(32 * BackwardShape<E, kDim>::kWarps, BackwardShape<E, kDim>::kBlocks)
    backward_kernel(const __grid_constant__ BackwardProblem p) {
  using Shape = BackwardShape<E, kDim>;
  using Value = typename E::Value;
  using Acc = typename E::Acc;
  extern __shared__ __align__(16) unsigned char shared[];
  const Team team(p.warps);
  const int teams = Shape::kWarps / team.warps;
  const BackwardTiles<E, kDim> tiles(shared, team);

  // Blocks in groups of `split` share the units of a set. With d_bias a team keeps one head for all its units
  // (the number of teams is then a multiple of the heads) and adds to one slab.
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.split));
  const std::int64_t first_set = blockIdx.x / static_cast<unsigned>(p.split);
  const std::int64_t set_step = gridDim.x / static_cast<unsigned>(p.split);
  Acc* slab = nullptr;
  if (p.slabs != nullptr) {
    const std::int64_t diagonals = 2 * std::int64_t{p.length} - 1;
    slab = static_cast<Acc*>(p.slabs) + ((first_set * teams + team.slot) * p.split + part) * diagonals;
    for (std::int64_t i = team.thread; i < diagonals; i += team.threads()) slab[i] = 0;
    team.sync();
  }

  const bool queries = p.dq.data != nullptr || slab != nullptr;
  const bool keys = p.dk.data != nullptr || p.dv.data != nullptr;
  // One token has nowhere to send probability: dS is 0, not the rounding of dP - delta.
  const bool with_delta = p.length > 1 && (queries || p.dk.data != nullptr);
  const int tasks_a_role = p.tiles * Shape::kParts, tasks = tasks_a_role * (queries + keys);
  // Both pairs and the statistics stay in shared memory for all tasks of the unit.
  const bool whole = Shape::kStream == kRows && p.tiles == 1;
  bool used = false;  // a slower warp may still read shared memory
  for (std::int64_t set = first_set; set < p.sets; set += set_step) {
    const std::int64_t index = set * teams + team.slot;
    if (index >= p.units) break;
    const Unit found = find_unit(p, index);
    const Mask mask(p.dropout, found);
    const Acc* bias = static_cast<const Acc*>(p.bias);
    if (bias != nullptr) bias += found.head * (2 * std::int64_t{p.length} - 1);

#pragma unroll 1
    for (int task = part; task < tasks; task += p.split) {
      const Unit unit = found.late();
      const int step = task % tasks_a_role, first = step / Shape::kParts * team.rows();
      const int channel0 = step % Shape::kParts * Shape::kOut;
      const bool of_queries = queries && task < tasks_a_role;
      const bool load = !whole || task == part;
      if (load) {
        if (used) team.sync();
        used = true;
        stage_pair<E, kDim, kRows>(p, of_queries ? kQ : kK, tiles.own0, tiles.kOwn, unit, first, team);
      }
      if (of_queries) {
        if (load) {
          const Value* const o = slice<const Value>(p.o, unit);
          QueryStatistics<E, kDim, kRows> statistics;
          statistics.load(p, unit, o, with_delta, first, team);
          wait_for_copies();
          team.sync();
          statistics.store(p, o, tiles.own(1), with_delta, first, tiles, team);
        }
        backward_task<E, kDim, false>(p, tiles, unit, mask, bias, channel0 == 0 ? slab : nullptr, first, channel0,
                                      load, with_delta, team);
      } else {
        BackwardTiles<E, kDim> turned = tiles;
        if (whole && queries && part < tasks_a_role) {  // the first task loaded Q and dO as its own
          turned.own0 = tiles.streamed0;
          turned.streamed0 = tiles.own0;
        }
        backward_task<E, kDim, true>(p, turned, unit, mask, bias, nullptr, first, channel0, load, with_delta, team);
      }
    }
  }
}

}  // namespace axial::kernels::cuda
