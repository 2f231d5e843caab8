# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Draws the rows of the tasks on which an autoregressive model's answers are timed: `python benchmarks/exact_tasks.py`

`requests`: a request, answered by its fields as JSON. `counting`: a word problem of one or two steps, answered by
the steps. `chat`: open questions without an answer. All texts are written by hand. Splits share no wording and no
value of the slots place, task, item, song (so no answer of a request in `tune` or `test` stands in `train`), name,
thing and all topics of chat. Days, sizes, rooms, numbers and times are common, so the calculation of a problem may
recur. In the test of `chat`, 40 prompts have no slots, and each is its own wording. A round of rows deals each wording
once, in random order, without prompts that came before. When a round has nothing new, prompts may come again.
"""

import json
import operator
import random
import re
from collections.abc import Iterator
from itertools import product
from typing import Any


SPLITS = ("train", "tune", "test")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
FIELDS = {"reserve": "place people day time", "remind": "task day time"}
FIELDS |= {"order": "item count size", "play": "song room volume"}
TOPICS = ("idea", "land", "hobby", "dish", "animal", "job", "event", "object", "code")
# "## name: train # tune # test", or one for all. In requests, {n} is the number, and {on} the day, after "on" if it
# takes one. A problem of counting follows its steps, where x is the last result; {n} and {m} are people, {t} things.
TEXT = """
day: Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|today|tomorrow ## size: small|medium|large ## room:
kitchen|bedroom|living room|bathroom|garage|office ## place: Luigi's|the Blue Door|Chez Marie|Golden Lotus|the Old
Mill|Taco Corner|Bella Vista|the Harbour Grill|Sakura|Green Leaf|the Copper Pot|Maison Blanche|Curry House|the Lantern|
Casa Lupe|Olive Tree|Noodle Bar|the Red Fox|Smoky Joe's|Trattoria Roma|the Garden Room|Little Saigon|Burger Barn|the
Silver Spoon # Pizzeria Napoli|the Crooked Barrel|El Sombrero|Jade Palace|Mama Rosa's|the Fig|Bombay|La Petite Table|
the Anchor|Kimchi Kitchen # Don Pedro's|the White Horse|Café Lumière|Dragon Gate|the Boathouse|Nonna's|Spice Route|
Bistro Nord|Tokyo Diner|Wild Thyme|the Monkey|Le Jardin|Tandoor|Lido|Toscana|Pepper|Ramen Bar|the Hungry Bear|Big Al's|
Verde|the Glass House|Pho Station|Steak and Stone|the Gilded Goose ## task: call the dentist|water the plants|pay the
rent|pick up the parcel|send the report|book the flights|buy milk|take out the bins|renew the passport|feed the cat|
email the plumber|return the books|charge the bike|check the oven|print the tickets|wash the car|order new glasses|fold
the laundry|walk the dog|back up the laptop|sign the lease|cancel the gym|bake a cake|visit the bank # clean the
fridge|text Grandma|mow the lawn|file the claim|defrost the chicken|replace a bulb|wrap the present|vacuum the stairs|
update the calendar|pump up the tyres # ring the landlord|trim the hedge|settle the bill|collect the suits|finish the
slides|apply for a visa|get bread|empty the sink|see the optician|brush the horse|write to Aunt May|drop off the keys|
fill up the tank|stir the soup|scan the receipts|polish my shoes|iron a shirt|take my vitamins|bathe the baby|download
the photos|post the letter|pack the suitcase|prepare the salad|thank the neighbours ## item: veggie burgers|iced
coffees|chicken wraps|muffins|tomato soups|spring rolls|sandwiches|orange juices|Caesar salads|lemon teas|beef tacos|
pepperoni pizzas|fish cakes|apple pies|hot chocolates|egg omelettes|lamb kebabs|fruit smoothies|onion tarts|rice bowls|
cinnamon buns|pasta bakes|bean burritos|milkshakes # pork dumplings|espressos|garlic breads|ham bagels|ginger ales|
falafel plates|cherry tarts|potato salads|prawn noodles|waffles # hot dogs|cappuccinos|tuna baguettes|scones|lentil
stews|samosas|turkey clubs|apple ciders|Greek salads|mint teas|quesadillas|Hawaiian pizzas|crab rolls|pecan brownies|
matcha lattes|spinach quiches|duck pancakes|mango lassis|cheese fondues|poke bowls|croissants|lasagnes|nacho plates|
root beers ## song: Blue Moon|Hey Jude|Yesterday|Let It Be|Clocks|Africa|Imagine|Halo|Thriller|Hallelujah|Wonderwall|
Waterloo|Dancing Queen|Purple Rain|Take On Me|Hotel California|Hello|Billie Jean|Space Oddity|Jolene|Respect|No Woman
No Cry|Happy|Smooth Operator # Yellow|Superstition|Life on Mars|Sweet Caroline|Landslide|Valerie|Royals|Piano Man|Fast
Car|Umbrella # Bohemian Rhapsody|Stand by Me|Fly Me to the Moon|Poker Face|Viva la Vida|Zombie|Toxic|Rocket Man|Mamma
Mia|Heroes|Creep|Lean on Me|Under Pressure|Angie|Someone Like You|Firework|Boys of Summer|Shallow|Redemption Song|
Roxanne|Sweet Dreams|Karma Chameleon|Ring of Fire|Layla ## name: Tom|Anna|Lucas|Sara|Ben|Maria|David|Julia|Peter|Nina|
Omar|Lily|Jack|Emma|Carlos|Ruth|Leo|Hannah # George|Ella|Ivan|Sofia|Henry|Zoe|Kenji|Alice # Noah|Fatima|Oscar|Priya|
Daniel|Ingrid|Marcus|Chloe|Felix|Rosa|Simon|Yuki|Walter|Edith|Diego|Helen ## thing: apples|marbles|pencils|stickers|
cookies|shells|books|coins|cards|balloons|buttons|stamps|candles|oranges|toy cars|beads|postcards|cupcakes # pears|
erasers|magnets|spools|ribbons|mugs|keyrings|tulips # peaches|bracelets|kites|lemons|pebbles|comics|brushes|walnuts|
posters|melons|carrots|dolls|feathers|figs|whistles|envelopes ## idea: photosynthesis|gravity|inflation|evolution|
electricity|magnetism|the water cycle|friction|DNA|black holes|compound interest|democracy|the immune system|sound
waves|rainbows|volcanoes|tides|vaccines|solar panels|the internet|probability|the food chain # earthquakes|
fermentation|lightning|fractions # osmosis|the seasons|cell division|recycling|eclipses|antibiotics|batteries|the stock
market|radio waves ## land: Iceland|Kyoto|Paris|Morocco|New York|Rome|Kenya|Brazil|Norway|Istanbul|Vietnam|Egypt|
Lisbon|Canada|Peru|Berlin|New Zealand|Greece|Ireland|Thailand|Prague|Cuba|Scotland|Toronto # Argentina|Vienna|Jordan|
Seattle # Japan|Barcelona|India|Chicago|Finland|Venice|Tanzania|Chile ## hobby: knitting|rock climbing|photography|
chess|gardening|swimming|playing the guitar|painting|birdwatching|running|cycling|pottery|baking|hiking|learning
Spanish|yoga|woodworking|juggling|fishing|calligraphy # origami|rowing|karate|singing in a choir # skiing|beekeeping|
playing the piano|bouldering|crochet|tennis|drawing|scuba diving ## dish: vegetable soup|pancakes|fried rice|banana
bread|lasagna|guacamole|omelettes|chicken curry|pizza|apple pie|potato salad|chili|hummus|roast chicken|tomato sauce|
sushi|cheesecake|falafel|oatmeal|tacos|risotto # waffles|minestrone|paella|meatballs # pumpkin soup|ratatouille|
dumplings|carrot cake|spaghetti carbonara|shakshuka|brownies|fish and chips ## animal: penguins|elephants|honeybees|
turtles|wolves|owls|octopuses|cats|bats|giraffes|frogs|ants|dolphins|kangaroos|sharks|butterflies|horses|bears|
hedgehogs|parrots|spiders|foxes|whales|snails|beavers # camels|ladybugs|seals|crows # tigers|hummingbirds|crocodiles|
rabbits|jellyfish|eagles|squirrels|goats ## job: a nurse|a firefighter|a software engineer|a teacher|a pilot|a chef|a
journalist|a carpenter|a lawyer|a farmer|a librarian|an architect|a bus driver|a scientist|a veterinarian # a dentist|
an electrician|a florist|a judge # a surgeon|a mail carrier|a tailor|an astronaut|a geologist|a waiter|a photographer|a
mechanic ## event: a birthday party|a job interview|a camping trip|a school play|a wedding|a long flight|a picnic|a
family reunion|a marathon # a barbecue|a road trip|a graduation|a book club meeting # a housewarming party|a music
festival|a final exam|a garden wedding|a day at the beach|a ski vacation|a public speech|a quiz night ## object: a lost
umbrella|an old clock|a paper boat|a broken violin|a tiny robot|a locked door|a red kite|a golden key|a snow globe # a
cracked teapot|a silver coin|a wooden horse|a lonely lamp # an empty bottle|a stone bridge|a rusty bicycle|a glass
marble|a hidden map|a yellow raincoat|a music box|a sleepy dragon ## code: reverses a string|counts vowels|checks if a
number is prime|finds the longest word|removes duplicates from a list|computes a factorial|sums the digits of a number|
merges two dictionaries # rounds a price|counts the lines of a file|doubles every number in a list # checks for
anagrams|flattens a nested list|counts words|rolls two dice|finds the median|draws a triangle of stars
## reserve: Book a table for {n} at {place} {on} at {time}.|Could you get us a table at {place} for {n} people, {day}
at {time}?|I need a reservation for {n} at {place}, {day}, {time}.|We are {n} and want to eat at {place} {on}. Make it
{time}.|Reserve {n} seats at {place} for {day} at {time}|{on} at {time} we'd like to go to {place}, {n} of us.|table
for {n} {place} {day} {time}|Can {place} seat {n} guests {on} at {time}?|Call {place}, ask for a table {on} at {time},
party of {n}.|Restaurant: {place}, {day}, {time}, {n} people. # My friends and I, {n} in total, will visit {place}
{on}, {time}.|Is there room for {n} at {place} {on} around {time}?|{place} should hold a table {on} at {time}. We'll be
{n}.|Let's eat out {on}: {place}, {time}, {n} of us.|Squeeze a party of {n} in at {place}, {time}, {day}.|{n} hungry
people want to sit down at {place} at {time} {on}.|Phone {place}: one table, {n} chairs, {time}, {day}.|I'd like
{place} to expect {n} of us {on} at {time}.|Secure a spot at {place} for {day}, {time}, group of {n}.|A meal {on} at
{place}, please. {time}, {n} persons. # We celebrate at {place} {on}. {n} of us come at {time}, so have a table saved.|
Does {place} have space for {n} at {time} {on}? Grab it if so.|A table should wait when {n} of us enter {place} at
{time} {on}.|My parents visit, so put us down for {place} {on}, {n} people, {time}.|I've heard of {place}. Get us in
{on} at {time}, we'll be {n}.|If {place} takes bookings for {time} {on}, I'd like one for {n}.|Would you mind reserving
for {n} at {place}? Say {day}, {time}.|I say we try {place} {on}. Tell them {n} of us come at {time}.|The name is
{place}, we number {n}, and {time} {on} is when we come.|{time} {on} suits the {n} of us, so claim a table at {place}.
## remind: Remind me to {task} {on} at {time}.|{on} at {time} I have to {task}. Don't let me forget.|Set a reminder for
{time} {on}: {task}|Please make sure that I {task} {on} at {time}.|I must {task} by {time} {on}, remind me.|Ping me
{on} at {time} to {task}.|Add to my list: {task}, {day}, {time}|Can you tell me to {task} when it is {time} {on}?|Don't
forget that I want to {task} at {time}, {day}.|At {time} {on}, send me a note to {task}. # Please nudge me at {time}
{on} so that I {task}.|{day}, {time}: I need to {task}. A reminder please!|I always forget to {task}. Could you alert
me {on} at {time}?|Put "{task}" into my reminders for {day}, {time}.|I plan to {task} {on} at {time}. Give me a
heads-up.|Schedule an alert for {day}, {time}, telling me to {task}.|When it's {time} {on}, let me know it's time to
{task}.|reminder {task} {day} {time}|It's me who has to {task} {on}. Buzz me at {time}.|I'd like a notification {on},
{time} sharp: {task} # If I don't {task} {on}, I'm in trouble. Give me a shout at {time}.|Watch the clock for me: at
{time} {on} I'm supposed to {task}.|I promised to {task}. Make my phone ring {on} at {time}.|What I have to do {on} is
{task}. Prompt me at {time}.|A reminder for {time} would help, because I have to {task} {on}.|Jot this down: {task},
due {day}, {time}. Bring it up then.|Could something beep {on} at {time} and tell me to {task}?|{time} {on} is when I
should {task}. Hold me to it.|Without a message from you {on} at {time}, I won't {task}.|Have an alarm go off at {time}
{on}, with the label "{task}".
## order: Order {n} {size} {item}.|I'd like {n} {item}, {size}.|Can I get {n} of the {item}, size {size}?|{n} {item},
{size} ones please|Get me some {item}: {n} of them, {size}.|Please add {n} {size} {item} to my order.|We want {item} in
{size}. Make that {n}.|Send {n} {size} {item} to my place.|How about {item}? {n} please, {size} size.|Put me down for
{n} {size} {item}, please. # We're hungry: bring us {n} {item}, and {size} ones at that.|My order is {item}, the {size}
kind, times {n}.|Let's have {size} {item}, {n} in total.|For lunch I'd go with {item}. The {size} size, {n} of those.|
Would you deliver {n} {item}? The {size} ones will do.|Item: {item}, size: {size}, quantity: {n}|The fridge is empty,
so {n} {item} it is, the {size} size.|{n} {size} {item} sound right. Order them.|Tell the kitchen we need {n} {item}
and they should be {size}.|Go for the {size} {item} and have them send {n}. # The kids ask for {item}, so buy {n}. A
{size} size is enough.|Nothing fancy today, just {size} {item}. {n} should be plenty.|Guests are coming. Could they
make {n} {item} for us, {size} ones?|I was going to cook, but {n} {size} {item} sound better.|Do you still have {item}?
I'd take {n} if they come in {size}.|Same as last week: {item}. {size}, and {n} of them.|Whatever others pick, I'm
having {item}, {n} to be precise, and {size}.|Start an order with {n} {item} and choose {size} for the size.|Pick up
{n} {item} on your way. I mean the {size} ones.|How long would {n} {size} {item} take? Order them in any case.
## play: Play {song} in the {room} at volume {n}.|Put on {song} in the {room}, volume {n}.|In the {room} I want to hear
{song}. Volume {n}.|Turn the {room} speaker to {n} and play {song}.|I feel like {song} right now, {room}, at {n}|Start
{song} on the {room} speaker at {n}.|Set volume {n} in the {room}, then play {song}.|Can we listen to {song} in the
{room}? Level {n} please.|{song}, {room}, volume {n}!|I'm in the {room}. Play {song} here, not louder than {n}. # Let
{song} sound through the {room} with volume {n}.|The {room} is too quiet. Give me {song} at level {n}.|{n} is the
volume I want in the {room}, and {song} the song.|Next up: {song}. I'm in the {room}, and {n} is loud enough.|Would you
play us {song}? We're in the {room}, {n}% is fine.|music {room} {song} {n}|Switch the {room} over to {song} and the
volume to {n}.|I want {n} on the dial and {song} in the {room}.|Have the {room} speaker do {song}, at a volume of {n}.|
My guests in the {room} asked for {song}. Keep it at {n}. # Bring the {room} to life with {song}, loudness {n}.|When I
get to the {room}, I want {song} coming out at {n}.|Nobody in the {room} hears a thing. Change it to {n} and run
{song}.|{song} is stuck in my head. Let me hear it in the {room}, level {n}.|Is {song} in the library? Then stream it
to the {room} and choose {n}.|Time to dance! The {room} speaker should be on {song} and at {n}.|What I'd love in the
{room} now is {song}. Volume? {n}.|Whoever is in the {room} should get {song}, at {n} of 100.|We're cleaning the
{room}, and {song} would help. {n} is about right.|As soon as possible: {song}, at {n}, from the speaker in the {room}.
## counting: a+b x-c: There are {a} {t} in a box. {n} puts in {b} more, and {m} takes out {c}. How many {t} are in the
box?|a-b: {n} had {a} {t} and gave {b} of them to {m}. How many {t} does {n} have left?|a/b: {n} shares {a} {t} equally
among {b} friends. How many {t} does each friend get?|a*b: {n} has {a} bags with {b} {t} in each. How many {t} is that
altogether?|a-b: {n} has {a} {t} and {m} has {b}. How many more {t} does {n} have?|a+b x+a: {n} found {a} {t}. {m}
found {b} more than {n}. How many did they find together?|a*b x+c: {n} buys {a} packs of {b} {t} and gets {c} {t} as a
gift. How many {t} does {n} have?|a*b x-c: {n} filled {a} trays with {b} {t} each, but lost {c}. How many are left?|a+b
x/c: {n} brings {a} {t}, {m} brings {b}. They make {c} equal sets. How many {t} are in a set?|a-b x/c: {n} has {a} {t},
keeps {b} and splits the rest evenly between {c} cousins. How many does each get?|a+b: {n} has {a} {t} and buys {b}
more. How many {t} does {n} have now?|a*b c-x: {n} had {c} {t} and gave {b} to each of {a} boys. How many {t} did {n}
keep? # a-b: Of the {a} {t} on {n}'s table, {b} are bad. How many are fine?|a+b: {n} owns {a} {t}, and {m} owns {b}.
What is the total?|a-b x+c: {n} starts with {a} {t}, loses {b}, later finds {c} others and then has how many?|a/b: If
{n} packs {a} {t} into {b} equal boxes, how many {t} are in one box?|a*b: Each of {a} children draws {b} {t}. How many
have they drawn in total?|a+b: If {m} made {a} {t} and {n} beat {m} by {b}, how many did {n} make?|a-b x+a: {n} has {a}
{t}, which is {b} more than {m} has. How many do both have?|a*b x/c: {n} hands out {a} packets of {b} {t} evenly to {c}
pupils. How many {t} does a pupil receive?|a/b x-c: {a} {t} are split fairly between {b} people. {n}, one of them,
sells {c}. How many remain with {n}?|a+b c-x: {n} hopes for {c} {t} and has {a} at home and {b} at school. How many are
still to go?|a-b: Yesterday {n} counted {a} {t}, but today only {b}. How many have disappeared?|a+b x+c: In spring {n}
got {a} {t}, in summer {b}, in autumn {c}. How many over the year? # a+b: {n} dropped {b} {t} into a drawer which held
{a} before. How many does it hold now?|a-b: {m} borrowed {b} of {n}'s {a} {t}. How many can {n} still use?|a-b: {n}
wants {a} {t} and has {b} already. How many should {n} still get?|a/b: How many {t} will each of {b} teams have if {n}
deals out {a} fairly?|a*b: Every day {n} makes {b} {t}. How many are made in {a} days?|a+b x-c: {n} bought {a} {t} here
and {b} there, but dropped {c}. How many got home?|a-b x+c: A jar has {a} {t}. {n} removes {b} and {m} adds {c}. What
is in the jar now?|a-b x-c: Of {n}'s {a} {t}, one guest took {b}, another {c}. What was left?|a+b x+c: {n}, {m} and I
pile up our {t}: {a}, {b} and {c}. How big is the pile?|a*b x+c: {a} shelves carry {b} {t} each, and {c} lie on the
floor. How many must {n} count?|a*b x-c: {n} ordered {a} crates of {b} {t}, of which {c} came damaged. How many were
good?|a*b c-x: With {c} {t} in stock, {n} packs {a} parcels of {b}. How many stay in stock?|a/b x+c: {b} players share
{a} {t} equally. {n}, one of them, had {c} before. How many has {n} now?|a/b x-c: {a} {t} are dealt equally to {b}
girls. One of them uses up {c}. How many does she have now?|a+b x/c: {a} {t} from {n} and {b} from {m} fill {c} plates
evenly. How many lie on one?|a-b x/c: {n} throws out {b} of {a} {t} and makes {c} equal heaps of the rest. How big is
one?|a+b x+b: {m} has {b} {t}, {n} has {a} more than that. How many is that between them?|a-b x+a: {n} collected {a}
{t}. {m} collected {b} fewer. How many did they collect in all?|a-b: {n}'s red box holds {a} {t}, the green one {b}.
How many fewer is that?|a+b c-x: Out of {c} {t}, {n} painted {a} and {m} painted {b}. How many are unpainted?|a*b x/c:
{n} empties {a} sacks of {b} {t} into {c} buckets, evenly. What does a bucket hold?|a/b: {n} can carry {b} {t} at a
time. How many trips does it take to move {a}?|a*b: A pack has {b} {t}. {n} needs {a} packs. How many {t} will {n}
own?|a+b: By noon {n} had sold {a} {t}, by evening another {b}. How many is that?|a-b: Of {a} {t}, {n} has checked {b}.
How many does {n} have yet to check?|a*b x+b: {m} has {b} {t}, {n} has {a} times as many. How many do the two have?|a*b
x-b: {n} has {a} times as many {t} as {m}, who has {b}. How many more is that?|a/b x*c: {n} puts {a} {t} in {b} equal
rows. How many {t} would {c} such rows have?|a-b x*c: Each of {c} boxes had {a} {t}, until {n} took {b} from each. What
is the total now?|a+b x*c: A kit has {a} big and {b} little {t}. How many are in {n}'s {c} kits?
## chat: Explain {idea} in simple terms.|What is the main idea behind {idea}?|Explain {idea} to a ten-year-old.|List
{number} facts about {idea}.|Why should anyone care about {idea}?|Summarize what we know about {idea} in {number}
sentences.|Write a short quiz with {number} questions about {idea}.|Give me an analogy that helps to understand
{idea}.|What should I see on a first visit to {land}?|Plan a trip to {land} for {number} days.|Compare {land} and
{land2} as holiday destinations.|Describe the climate of {land}.|List {number} interesting facts about {land}.|Write a
postcard from {land} to a friend.|What food is {land} known for?|How do I get started with {hobby}?|List {number}
benefits of {hobby}.|Compare {hobby} with {hobby2} as a hobby for a busy person.|What equipment do I need for {hobby}?|
Write a short poem about {hobby}.|Give me {number} tips to get better at {hobby}.|How do I make {dish}?|Write a
shopping list for {dish}.|What goes well with {dish}?|What do {animal} eat?|Compare {animal} and {animal2}.|Tell me
{number} surprising facts about {animal}.|Write a short story in which {animal} meet {animal2}.|How do {animal} survive
in the wild?|What does {job} do all day?|What skills does it take to be {job}?|Compare the work of {job} and {job2}.|
Write a short cover letter for a position as {job}.|Help me to plan {event}.|Make a checklist for {event}.|How can I
stay calm before {event}?|Write a short story about {object}.|Write a poem of {number} lines about {object}.|Write a
Python function that {code}.|Show me with an example how Python code {code}. # Could you walk me through {idea}?|Is
{land} worth a visit in winter?|Which would you rather learn, {hobby} or {hobby2}?|My friends are coming over. Teach me
to cook {dish}.|Describe the life of {animal} in one paragraph.|How does somebody become {job}?|What could go wrong at
{event}?|Invent a fairy tale around {object}.|I'm new to Python. Which code {code}?|Draft a text message to my boss
about {event}. # My teacher mentioned {idea} today. What is that about?|Give a brief history of how {idea} became
understood.|How would you teach {idea} in an hour?|Tell me the most important thing to know about {idea}.|Write a
dialogue of two students who discuss {idea}.|Is it better to live in {land} or in {land2}?|I have one weekend in
{land}. What shouldn't I miss?|What customs should a visitor to {land} know?|What should I pack for a week in {land}?|
Is {hobby} hard to learn for an adult?|Convince me to take up {hobby}.|What mistakes do beginners make in {hobby}?|Set
up a four-week plan for someone new to {hobby}.|What's the secret of good {dish}?|I have no oven. Can I still prepare
{dish}?|Write a tempting menu entry for {dish}.|Where do {animal} live, and why there?|Are {animal} dangerous to
people?|Write a bedtime story in which {animal} save the day.|Would you recommend becoming {job}? Give pros and cons.|
How might technology change the work of {job}?|Write {number} interview questions for {job}.|Give me a timeline for
organizing {event}.|Write a funny speech for {event}.|What is a good last-minute idea for {event}?|Begin a mystery
novel with {object}. Just one paragraph.|Write a haiku about {object}.|Who might own {object}? Describe this person.|Is
there a Python one-liner that {code}?|How would you test Python code that {code}?|Why is the sky blue by day and red in
the evening?|I can't fall asleep before two. What could I change?|What is the difference between weather and climate?|
Rewrite this more politely: Send me the file now.|Summarize: The council met about the bridge. Most were in favor, but
the cost isn't known, so the vote was postponed.|My neighbor plays loud music. How do I bring it up?|Suggest five names
for a bakery.|What happened to the dinosaurs?|Write a limerick about a man who is always late.|How do I remove red wine
from a white shirt?|What are the rules of soccer?|What are three good reasons to keep a diary?|Translate "Where is the
station?" into French.|How do Python's lists and tuples differ?|I got too much change at the store. What now?|How does
a microwave heat food?|Write an apology for forgetting a birthday.|What can I do with leftover rice?|Give me a
ten-minute workout without equipment.|Who was Marie Curie?|How do airplanes stay in the air?|Make a cleaning schedule
for three roommates.|Why do we have leap years?|Write a product description for a backpack.|How do I learn new
vocabulary?|My laptop is slow. What should I check?|What does this do: for i in range(10): print(i * i)|Is it cheaper
to rent or to buy a home?|List the planets with one fact about each.|How do I tell my boss that I have too much work?|
Which houseplants survive with little light?|How many hours of sleep do teenagers need?|Correct the grammar: She don't
like when it are raining.|Why does bread rise?|What belongs in a first-aid kit?|Think of a slogan against food waste.|
How do try and except work in Python?|Describe the taste of a lemon.|What caused the First World War?|How can I save
one hundred dollars a month?
"""
TEXTS = {
    (name.strip(), split): [" ".join(text.split()) for text in texts.split("|")]
    for name, section in (part.split(":", 1) for part in TEXT.split("##"))
    for split, texts in zip(SPLITS, section.split("#") * 3, strict=False)
}
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


def draw_field(rng: random.Random, field: str, split: str) -> tuple[str, Any]:
    """Draws a field of a request as people say it, and its value."""
    if field == "time":
        hour, minute = rng.randint(8, 22), rng.choice(("00", "00", "15", "30", "45"))
        spoken = f"{(hour - 1) % 12 + 1}:{minute}".removesuffix(":00") + (" am" if hour < 12 else " pm")
        clock = f"{hour:02}:{minute}"
        return (clock if rng.random() < 0.2 else spoken), clock
    if field == "volume":
        return str(number := rng.randint(1, 99)), number
    if field in ("people", "count"):
        number = rng.randint(2, 10)
        return (NUMBERS[number - 2] if rng.random() < 0.6 else str(number)), number
    value = rng.choice(TEXTS[field, split])
    return value, value


def draw_request(rng: random.Random, split: str, action: str, wording: str) -> tuple[str, str]:
    spoken, values = {}, {"action": action}
    for field in FIELDS[action].split():
        words, values[field] = draw_field(rng, field, split)
        spoken["n" if field in ("people", "count", "volume") else field] = words
    day = spoken.get("day", "")
    spoken["on"] = day if day in ("today", "tomorrow") else f"on {day}"
    return wording.format(**spoken), json.dumps(values)


def draw_problem(rng: random.Random, split: str, steps: str, wording: str) -> tuple[str, str]:
    """Draws numbers until each result is from 1 to 120, and products and quotients are simple, without a rest."""
    while True:
        numbers = {letter: rng.randint(2, 60) for letter in "abc"}
        known, lines = dict(numbers), []
        for left, sign, right in steps.split():
            first, second = known[left], known[right]
            known["x"] = result = OPERATIONS[sign](first, second)
            lines.append(f"{first} {sign} {second} = {result}.")
            too_hard = (sign == "*" and min(first, second) > 12) or (sign == "/" and second > 12)
            if too_hard or not 1 <= result <= 120 or (sign == "/" and (result == 1 or first % second)):
                break
        else:
            n, m = rng.sample(TEXTS["name", split], 2)
            problem = wording.format(n=n, m=m, t=rng.choice(TEXTS["thing", split]), **numbers)
            return problem, " ".join([*lines, f"The answer is {result}."])


def draw_question(rng: random.Random, split: str, _: str, wording: str) -> tuple[str, None]:
    slots = {"number": rng.choice(NUMBERS[1:6])}
    for topic in TOPICS:
        slots[topic], slots[f"{topic}2"] = rng.sample(TEXTS[topic, split], 2)
    return wording.format(**slots), None


def draw_rows(task: str, split: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yields rows without end, the same for the same arguments; `wording` is the index of a row's wording."""
    rng = random.Random(f"{task} {split} {seed}")
    draw = {"requests": draw_request, "counting": draw_problem, "chat": draw_question}[task]
    if task == "counting":
        wordings = [wording.split(": ", 1) for wording in TEXTS[task, split]]
    else:
        wordings = [(k, wording) for k in (FIELDS if task == "requests" else (task,)) for wording in TEXTS[k, split]]
    order = list(range(len(wordings)))
    seen: set[str] = set()
    while True:
        rng.shuffle(order)
        num_seen = len(seen)
        for index in order:
            text, answer = draw(rng, split, *wordings[index])
            text = re.sub(r"(^|[.?!] )([a-z])", lambda start: start[1] + start[2].upper(), text)
            if text not in seen:
                seen.add(text)
                yield {"prompt": [{"role": "user", "content": text}], "answer": answer, "wording": index}
        if len(seen) == num_seen:
            seen.clear()


def is_right(task: str, answer: str, text: str) -> bool:
    """Says if a text has the same JSON as the answer (requests), or the same last number (counting)."""
    if task == "requests":
        try:
            return json.loads(text) == json.loads(answer)
        except (ValueError, RecursionError):
            return False
    if task == "counting":
        found, right = (re.findall(r"-?\d[\d,]*(?:\.\d+)?", words)[-1:] for words in (text, answer))
        return [float(number.replace(",", "")) for number in found] == [float(number) for number in right]
    raise ValueError(f"task is {task!r}, but only answers of 'requests' and 'counting' are right or wrong.")


def main() -> None:
    for task, split in product(("requests", "counting", "chat"), SPLITS):
        for row, _ in zip(draw_rows(task, split, 0), range(3), strict=False):
            print(f"{task} {split}: {json.dumps(row, ensure_ascii=False)}")


if __name__ == "__main__":
    main()
