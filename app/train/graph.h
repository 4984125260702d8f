// CUDA graphs: a sequence of launches that is recorded once and then replayed as one. graph_cuda.cpp is the source
// behind it, and is left out of a build without CUDA: callers ask AXIAL_WITH_CUDA.
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

namespace axial::app {

class Graph {
 public:
  virtual ~Graph() = default;
  virtual void replay() = 0;  // on the current stream
};

// Records graphs that share one pool of memory: they are replayed in the order of their recording, and what one
// leaves for another is held by a tensor.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  // What `call` would launch on the current stream, which is not the default one; nothing is run. Throws where `call`
  // does what cannot be recorded (waits for the device, say); the device and its memory go on as before.
  virtual std::unique_ptr<Graph> record(const std::function<void()>& call) = 0;
};

std::unique_ptr<GraphRecorder> make_graph_recorder(at::Device device);

}  // namespace axial::app
