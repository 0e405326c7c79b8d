"""Trees in English and German, against sentences and paradigms written by hand."""

from dataclasses import replace

import pytest

from transduce.demo import lexicon
from transduce.demo.english import english_sentence
from transduce.demo.german import german_noun_phrase, german_sentence
from transduce.demo.inflection import PERSONS, Adjective, Adverb, Case, Verb
from transduce.demo.syntax import (
    Clause,
    Coordination,
    Fronted,
    Name,
    NounGroup,
    NounPhrase,
    Place,
    Quality,
    SentenceTree,
    Tense,
    relative_pronoun,
)

CASES: tuple[Case, ...] = ("nominative", "accusative", "dative", "genitive")
NOUNS = [noun for nouns in lexicon.NOUNS.values() for noun in nouns]
DETERMINERS = (lexicon.THE, lexicon.A, lexicon.NO, *lexicon.DEFINITE, *lexicon.QUANTIFIERS)

# Trees written as English words, so that the golden sentences below can be read


def np(text: str) -> NounPhrase:
    """Return the tree of a phrase: he, Anna, the very old men, the man's car, Anna and the boy, water."""
    if " and " in text:
        first, second = (np(part) for part in text.split(" and "))
        assert isinstance(first, Name | NounGroup) and isinstance(second, Name | NounGroup)
        return Coordination(first, second)
    for pronoun in lexicon.PRONOUNS:
        if text in pronoun.english:
            return pronoun
    return Name(text) if Name(text) in lexicon.NAMES else phrase(text)


def phrase(text: str) -> NounGroup:
    owner, _, thing = text.rpartition("'s ")
    *words, last = thing.split()
    noun, plural = next((n, last != n.english) for n in NOUNS if last in (n.english, n.english_form(True)))
    article = "a" if words[:1] == ["an"] else "".join(words[:1])
    determiner = next((d for d in DETERMINERS if article and article == d.english[plural]), None)
    words = words[1:] if determiner else words
    qualities = tuple(
        Quality(adjective(word), words[max(i - 1, 0)] == "very") for i, word in enumerate(words) if word != "very"
    )
    if not owner:
        return NounGroup(noun, plural, determiner, qualities)
    owners = np(owner)
    assert isinstance(owners, Name | NounGroup)
    return NounGroup(noun, plural, lexicon.THE, qualities, owner=owners)


def adjective(english: str) -> Adjective:
    return next(word for word in lexicon.ADJECTIVES if word.english == english)


def verb(english: str) -> Verb:
    return next(word for word in lexicon.VERBS if f"{word.english} {word.particle}".strip() == english)


def modal(english: str) -> Tense:
    modals = (*lexicon.MODALS, lexicon.FUTURE)
    return next(word for word in modals if f"{word.auxiliary or ''} {word.link}".strip() == english)


def adverb(english: str) -> Adverb:
    tables = (*lexicon.TIMES, *lexicon.FREQUENCIES, lexicon.NEVER, *lexicon.SUBORDINATORS, *lexicon.JOINTS)
    return next(word for word in (*tables, *lexicon.QUESTION_ADVERBS) if word.english == english)


def place(preposition: str, where: str) -> Place:
    prepositions = (*lexicon.AT["building"], lexicon.ON, lexicon.INTO, lexicon.TO, *lexicon.COMPANY)
    words = next(word for word in prepositions if word.english == preposition)
    cities = [city for city in lexicon.CITIES if city.english == where]
    return Place(words, cities[0] if cities else np(where))


def clause(subject: str | NounPhrase, action: str, *objects: str | NounPhrase, tense: Tense = "present") -> Clause:
    things = tuple(np(thing) if isinstance(thing, str) else thing for thing in objects)
    return Clause(np(subject) if isinstance(subject, str) else subject, verb(action), tense, things)


def being(subject: str, quality: str, tense: Tense = "present") -> Clause:
    return replace(clause(subject, "be", tense=tense), quality=Quality(adjective(quality.split()[-1]), " " in quality))


def relative(
    head: str, subject: str | None, action: str, thing: str | None = None, tense: Tense = "present"
) -> NounGroup:
    """Return the head with a relative clause, of which it is the subject or the object."""
    noun = phrase(head)
    gap = Fronted(relative_pronoun(noun), noun.noun.kind)
    things = (gap,) if subject else ((np(thing),) if thing else ())
    return replace(noun, relative=clause(subject or gap, action, *things, tense=tense))


def at_time(plain: Clause, time: str, *, first: bool = False) -> Clause:
    return replace(plain, time=adverb(time), opening="time" if first else None)


def sequence(first: Clause, action: str, *objects: str) -> Clause:
    return replace(first, second=clause(first.subject, action, *objects, tense=first.tense))


def at(plain: Clause, preposition: str, where: str, *, first: bool = False) -> Clause:
    return replace(plain, place=place(preposition, where), opening="place" if first else None)


def often(plain: Clause, frequency: str) -> Clause:
    return replace(plain, frequency=adverb(frequency))


def negative(plain: Clause) -> Clause:
    return replace(plain, negated=True)


def saying(main: Clause, content: Clause) -> Clause:
    return replace(main, complement=content)


def asking(plain: Clause, word: str | None = None) -> SentenceTree:
    return SentenceTree((replace(plain, question_word=adverb(word)) if word else plain,), question=True)


def compound(first: Clause, joint: str, second: Clause) -> SentenceTree:
    return SentenceTree((first, second), joint=adverb(joint))


# fmt: off
GOLDEN: list[tuple[Clause | SentenceTree, str, str]] = [
    # articles, adjectives, cases
    (clause("the old man", "open", "the door"),
     "The old man opens the door.", "Der alte Mann macht die Tür auf."),
    (clause("a small cat", "see", "a brown bird"),
     "A small cat sees a brown bird.", "Eine kleine Katze sieht einen braunen Vogel."),
    (clause("a friendly child", "visit", "a rich aunt"),
     "A friendly child visits a rich aunt.", "Ein freundliches Kind besucht eine reiche Tante."),
    (clause("I", "see", "my old neighbor"), "I see my old neighbor.", "Ich sehe meinen alten Nachbarn."),
    (clause("we", "help", "this poor student"),
     "We help this poor student.", "Wir helfen diesem armen Studenten."),
    (clause("every boy", "drink", "cold water"), "Every boy drinks cold water.", "Jeder Junge trinkt kaltes Wasser."),
    (clause("many old friends", "eat", "all sweet apples"),
     "Many old friends eat all sweet apples.", "Viele alte Freunde essen alle süßen Äpfel."),
    (clause("two brave women", "follow", "some young bears"),
     "Two brave women follow some young bears.", "Zwei mutige Frauen folgen einigen jungen Bären."),
    (clause("Anna", "trust", "Peter and the prince"),
     "Anna trusts Peter and the prince.", "Anna vertraut Peter und dem Prinzen."),
    (clause("Anna's old uncle", "buy", "the teacher's expensive car"),
     "Anna's old uncle buys the teacher's expensive car.",
     "Annas alter Onkel kauft das teure Auto des Lehrers."),
    (clause("the girl's sister", "thank", "the old man's friend"),
     "The girl's sister thanks the old man's friend.", "Die Schwester des Mädchens dankt dem Freund des alten Mannes."),
    (clause("she", "show", "him", "an umbrella"), "She shows him an umbrella.", "Sie zeigt ihm einen Regenschirm."),
    (clause("they", "offer", "their brothers", "the black hats"),
     "They offer their brothers the black hats.", "Sie bieten ihren Brüdern die schwarzen Hüte an."),
    (clause("he", "pick up", "her"), "He picks her up.", "Er holt sie ab."),
    (clause("he", "look for", "her"), "He looks for her.", "Er sucht sie."),
    (being("our kitchen", "very dark"), "Our kitchen is very dark.", "Unsere Küche ist sehr dunkel."),
    (at(clause("I", "be"), "in", "the dark forest"), "I am in the dark forest.", "Ich bin im dunklen Wald."),
    # past: the perfect, but the preterite of haben and sein
    (clause("the women", "close", "the heavy box", tense="past"),
     "The women closed the heavy box.", "Die Frauen haben die schwere Kiste zugemacht."),
    (clause("the cat", "fall asleep", tense="past"), "The cat fell asleep.", "Die Katze ist eingeschlafen."),
    (clause("I", "follow", "the aunts", tense="past"), "I followed the aunts.", "Ich bin den Tanten gefolgt."),
    (clause("she", "repair", "these radios", tense="past"),
     "She repaired these radios.", "Sie hat diese Radios repariert."),
    (being("the boys", "tired", "past"), "The boys were tired.", "Die Jungen waren müde."),
    (clause("he", "have", "no dog", tense="past"), "He had no dog.", "Er hatte keinen Hund."),
    # modal verbs, future
    (clause("the artist", "call", "the queen", tense=modal("can")),
     "The artist can call the queen.", "Der Künstler kann die Königin anrufen."),
    (clause("David", "wash", "his blue shirt", tense=modal("want to")),
     "David wants to wash his blue shirt.", "David will sein blaues Hemd waschen."),
    (clause("we", "give", "the children", "a book", tense=modal("would like to")),
     "We would like to give the children a book.", "Wir möchten den Kindern ein Buch geben."),
    (at_time(at(clause("the doctor", "travel", tense=modal("will")), "to", "Vienna"), "tomorrow", first=True),
     "Tomorrow the doctor will travel to Vienna.", "Morgen wird der Arzt nach Wien reisen."),
    # adverbials, the verb second
    (at_time(clause("the woman", "buy", "an apple"), "today", first=True),
     "Today the woman buys an apple.", "Heute kauft die Frau einen Apfel."),
    (at_time(clause("the woman", "buy", "the apple"), "today"),
     "The woman buys the apple today.", "Die Frau kauft heute den Apfel."),
    (at_time(clause("Peter", "visit", "us", tense="past"), "last week"),
     "Peter visited us last week.", "Peter hat uns letzte Woche besucht."),
    (at(clause("the child", "play"), "in", "the garden", first=True),
     "In the garden the child plays.", "Im Garten spielt das Kind."),
    (at_time(at(clause("the birds", "sleep"), "in", "the forest"), "in summer"),
     "The birds sleep in the forest in summer.", "Die Vögel schlafen im Sommer im Wald."),
    (at(clause("the son", "go"), "into", "the museum"), "The son goes into the museum.", "Der Sohn geht ins Museum."),
    (at(clause("the son", "go"), "into", "these cities"),
     "The son goes into these cities.", "Der Sohn geht in diese Städte."),
    (at(clause("the guest", "stand"), "in front of", "our old castle"),
     "The guest stands in front of our old castle.", "Der Gast steht vor unserem alten Schloss."),
    (at(clause("she", "dance"), "with", "her brothers"),
     "She dances with her brothers.", "Sie tanzt mit ihren Brüdern."),
    (at(clause("he", "cook"), "for", "me"), "He cooks for me.", "Er kocht für mich."),
    (at(clause("Julia", "live", tense="past"), "in", "Rome"), "Julia lived in Rome.", "Julia hat in Rom gewohnt."),
    # nicht, kein, nie, oft
    (negative(clause("the son", "turn on", "the lamp")),
     "The son does not turn on the lamp.", "Der Sohn schaltet die Lampe nicht ein."),
    (negative(at(clause("they", "swim", tense="past"), "with", "us")),
     "They did not swim with us.", "Sie sind nicht mit uns geschwommen."),
    (negative(clause("I", "find", "him", tense=modal("can"))), "I cannot find him.", "Ich kann ihn nicht finden."),
    (negative(being("Emma", "sick", "past")), "Emma was not sick.", "Emma war nicht krank."),
    (clause("no children", "eat", "the soup"),
     "No children eat the soup.", "Keine Kinder essen die Suppe."),
    (often(clause("she", "lose", "the key", tense="past"), "often"),
     "She often lost the key.", "Sie hat den Schlüssel oft verloren."),
    (often(clause("she", "drink", "coffee", tense=modal("can")), "never"),
     "She can never drink coffee.", "Sie kann nie Kaffee trinken."),
    # relative clauses
    (clause(relative("the dog", "the girl", "love"), "sleep"),
     "The dog that the girl loves sleeps.", "Der Hund, den das Mädchen liebt, schläft."),
    (clause("I", "take off", relative("the coat", "my sister", "buy", tense="past")),
     "I take off the coat that my sister bought.", "Ich ziehe den Mantel aus, den meine Schwester gekauft hat."),
    (clause("he", "see", relative("the women", "I", "help"), tense="past"),
     "He saw the women whom I help.", "Er hat die Frauen gesehen, denen ich helfe."),
    (clause(relative("a teacher", None, "open", "the window"), "answer", relative("the child", None, "laugh")),
     "A teacher who opens the window answers the child who laughs.",
     "Ein Lehrer, der das Fenster aufmacht, antwortet dem Kind, das lacht."),
    # subordinate clauses, the verb last
    (SentenceTree((clause("I", "laugh"),), after=(adverb("because"), clause("the old man", "open", "the door"))),
     "I laugh because the old man opens the door.", "Ich lache, weil der alte Mann die Tür aufmacht."),
    (SentenceTree((clause("she", "get up"),), before=(adverb("if"), clause("I", "call", "her"))),
     "If I call her, she gets up.", "Wenn ich sie anrufe, steht sie auf."),
    (SentenceTree((clause("we", "work"),), before=(adverb("although"), clause("we", "sleep", tense=modal("want to")))),
     "Although we want to sleep, we work.", "Obwohl wir schlafen wollen, arbeiten wir."),
    (saying(clause("the mother", "know"), clause("the child", "arrive", tense="past")),
     "The mother knows that the child arrived.", "Die Mutter weiß, dass das Kind angekommen ist."),
    (saying(negative(clause("I", "ask", tense="past")), clause("she", "invite", "them")),
     "I did not ask whether she invites them.", "Ich habe nicht gefragt, ob sie sie einlädt."),
    (saying(clause("the boy", "try", tense="past"), clause("the boy", "turn off", "the old radio")),
     "The boy tried to turn off the old radio.", "Der Junge hat versucht, das alte Radio auszuschalten."),
    (saying(clause("he", "promise"), clause("he", "help", "his mother")),
     "He promises to help his mother.", "Er verspricht, seiner Mutter zu helfen."),
    # coordination
    (sequence(clause("the man", "sing"), "open", "a window"),
     "The man sings and opens a window.", "Der Mann singt und macht ein Fenster auf."),
    (sequence(clause("they", "buy", "bread", tense="past"), "invite", "us"),
     "They bought bread and invited us.", "Sie haben Brot gekauft und uns eingeladen."),
    (compound(clause("the dog", "sleep"), "and", clause("the cats", "play")),
     "The dog sleeps, and the cats play.", "Der Hund schläft und die Katzen spielen."),
    (compound(being("she", "poor"), "but", being("her uncle", "rich")),
     "She is poor, but her uncle is rich.", "Sie ist arm, aber ihr Onkel ist reich."),
    # questions
    (asking(clause("the man", "see", "the dog")), "Does the man see the dog?", "Sieht der Mann den Hund?"),
    (asking(being("this story", "long")), "Is this story long?", "Ist diese Geschichte lang?"),
    (asking(clause("she", "come back", tense=modal("want to"))),
     "Does she want to come back?", "Will sie zurückkommen?"),
    (asking(clause("the boy", "buy", "the cake", tense="past"), "where"),
     "Where did the boy buy the cake?", "Wo hat der Junge den Kuchen gekauft?"),
    (asking(clause(Fronted(lexicon.WHO, "person"), "read", "my letters")),
     "Who reads my letters?", "Wer liest meine Briefe?"),
    (asking(clause("Robert", "listen to", Fronted(lexicon.WHO, "person"))),
     "Whom does Robert listen to?", "Wem hört Robert zu?"),
    (asking(clause("the women", "write", Fronted(lexicon.WHAT, "thing"), tense="past")),
     "What did the women write?", "Was haben die Frauen geschrieben?"),
]
# fmt: on


@pytest.mark.parametrize(("tree", "english", "german"), GOLDEN, ids=[english for _, english, _ in GOLDEN])
def test_sentences_equal_those_written_by_hand(tree: Clause | SentenceTree, english: str, german: str) -> None:
    sentence = tree if isinstance(tree, SentenceTree) else SentenceTree((tree,))
    assert (english_sentence(sentence), german_sentence(sentence)) == (english, german)


PARADIGMS = {
    "the old man": "der alte Mann, den alten Mann, dem alten Mann, des alten Mannes",
    "the old aunt": "die alte Tante, die alte Tante, der alten Tante, der alten Tante",
    "the old horse": "das alte Pferd, das alte Pferd, dem alten Pferd, des alten Pferdes",
    "the old children": "die alten Kinder, die alten Kinder, den alten Kindern, der alten Kinder",
    "an old man": "ein alter Mann, einen alten Mann, einem alten Mann, eines alten Mannes",
    "an old aunt": "eine alte Tante, eine alte Tante, einer alten Tante, einer alten Tante",
    "an old horse": "ein altes Pferd, ein altes Pferd, einem alten Pferd, eines alten Pferdes",
    "our tired guest": "unser müder Gast, unseren müden Gast, unserem müden Gast, unseres müden Gastes",
    "no old cars": "keine alten Autos, keine alten Autos, keinen alten Autos, keiner alten Autos",
    "old children": "alte Kinder, alte Kinder, alten Kindern, alter Kinder",
    "fresh bread": "frisches Brot, frisches Brot, frischem Brot",
    "cold milk": "kalte Milch, kalte Milch, kalter Milch",
    "sweet tea": "süßer Tee, süßen Tee, süßem Tee",
    "many old dogs": "viele alte Hunde, viele alte Hunde, vielen alten Hunden, vieler alter Hunde",
    "all old dogs": "alle alten Hunde, alle alten Hunde, allen alten Hunden, aller alten Hunde",
    "two old dogs": "zwei alte Hunde, zwei alte Hunde, zwei alten Hunden",
    "every dark room": "jedes dunkle Zimmer, jedes dunkle Zimmer, jedem dunklen Zimmer",
    "this expensive hat": "dieser teure Hut, diesen teuren Hut, diesem teuren Hut, dieses teuren Hutes",
    "Anna's young brother": "Annas junger Bruder, Annas jungen Bruder, Annas jungem Bruder",
    "the boy": "der Junge, den Jungen, dem Jungen, des Jungen",
    "a student": "ein Student, einen Studenten, einem Studenten, eines Studenten",
    "the neighbor's car": "das Auto des Nachbarn, das Auto des Nachbarn, dem Auto des Nachbarn",
    "my uncles": "meine Onkel, meine Onkel, meinen Onkeln, meiner Onkel",
    "the girls": "die Mädchen, die Mädchen, den Mädchen, der Mädchen",
}


@pytest.mark.parametrize("english", PARADIGMS)
def test_noun_phrases_decline_correctly(english: str) -> None:
    expected = PARADIGMS[english].split(", ")
    forms = [" ".join(german_noun_phrase(np(english), case)) for case in CASES]
    assert forms[: len(expected)] == expected


def test_relative_pronouns_take_gender_from_the_head_and_case_from_their_clause() -> None:
    table = {
        "the man": "der den dem",
        "the cat": "die die der",
        "the child": "das das dem",
        "the dogs": "die die denen",
    }
    for head, forms in table.items():
        assert " ".join(relative_pronoun(phrase(head)).german.values()) == forms


VERBS = {  # ich, er, wir; the infinitive with zu; the perfect
    "open": "mache macht machen aufzumachen hat aufgemacht",
    "fall asleep": "schlafe schläft schlafen einzuschlafen ist eingeschlafen",
    "invite": "lade lädt laden einzuladen hat eingeladen",
    "offer": "biete bietet bieten anzubieten hat angeboten",
    "come back": "komme kommt kommen zurückzukommen ist zurückgekommen",
    "pick up": "hole holt holen abzuholen hat abgeholt",
    "put on": "ziehe zieht ziehen anzuziehen hat angezogen",
    "turn on": "schalte schaltet schalten einzuschalten hat eingeschaltet",
    "travel": "reise reist reisen zu reisen ist gereist",
    "run": "laufe läuft laufen zu laufen ist gelaufen",
    "wait": "warte wartet warten zu warten hat gewartet",
    "answer": "antworte antwortet antworten zu antworten hat geantwortet",
    "find": "finde findet finden zu finden hat gefunden",
    "know": "weiß weiß wissen zu wissen hat gewusst",
    "forget": "vergesse vergisst vergessen zu vergessen hat vergessen",
    "order": "bestelle bestellt bestellen zu bestellen hat bestellt",
    "sell": "verkaufe verkauft verkaufen zu verkaufen hat verkauft",
    "taste": "probiere probiert probieren zu probieren hat probiert",
    "give": "gebe gibt geben zu geben hat gegeben",
    "eat": "esse isst essen zu essen hat gegessen",
    "wash": "wasche wäscht waschen zu waschen hat gewaschen",
    "have": "habe hat haben zu haben hat gehabt",
    "be": "bin ist sind zu sein ist gewesen",
}


@pytest.mark.parametrize("english", VERBS)
def test_verbs_conjugate_correctly(english: str) -> None:
    word = verb(english)
    perfect = "ist" if word.auxiliary == "sein" else "hat"
    forms = [word.german_present(person) for person in PERSONS]
    assert " ".join([*forms, word.zu_infinitive, perfect, word.participle]) == VERBS[english]
