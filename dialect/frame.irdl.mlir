// Levels spconv and stages: a frame's coordinates, checked and brought to a place with room for more.
irdl.dialect @spconv {
  irdl.operation @place_coords {
    %coords = irdl.base "!spconv.coords"
    irdl.operands(coords: %coords)
    irdl.results()
  }
}
