"""The cloud's end of edge streams: `/v1/edge`, a WebSocket."""
